"""Runs TensorRT's builder in a separate process: its crash is an error of the build, and its memory is given back.

The process starts in the same state for every build: in the directory of its request, with only the environment
variables below (:mod:`worker` says why).
"""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from trtllm_lite import _core
from trtllm_lite.builder.tensorrt import worker
from trtllm_lite.builder.tensorrt.log import Log
from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import BuildError

_ERRORS, _HEAP = "errors.txt", "steady_heap.so"
HEAP = Path(str(_core.__file__)).with_name(_HEAP)
_STDERR = "STDERR"  # severity of lines that libraries print outside TensorRT's logger
_KEPT = ("LD_LIBRARY_PATH",)  # TensorRT may look for CUDA's libraries there
_REFUSALS = {
    worker.PARSED: "TensorRT's parser refused the network and did not say why: report this with network.onnx",
    worker.BUILT: "TensorRT built no engine and did not say why: build with the native backend",
}


def build_apart(directory: Path, package: str) -> Log:
    """Let TensorRT's Python package ``package`` carry out the request in ``directory``, and write IMAGE there.

    Returns what it printed. Raises BuildError if TensorRT refuses, prints a line that is not known to be harmless, or
    ends early.
    """
    log, done = Log(), ""
    with closing(_messages(directory, package)) as messages:
        for kind, *content in messages:
            if kind == "line":
                log.lines.append((str(content[0]), str(content[1])))
                continue
            done, succeeded = content
            log.check(done)
            if not succeeded:
                raise BuildError(_REFUSALS[done])
    log.lines += [(_STDERR, line) for line in _printed(directory)]
    log.check("ended")
    if done != worker.BUILT:
        raise BuildError(f"TensorRT's compiler ended before it {worker.BUILT}: report this with network.onnx")
    return log


def _printed(directory: Path) -> list[str]:
    """Read what the process and its libraries have written to stdout and stderr without the logger."""
    return (directory / _ERRORS).read_text(errors="replace").splitlines()


def _messages(directory: Path, package: str) -> Generator[list[Any], None, None]:
    """Yield the messages of the process. Raises BuildError if it ends with an exit code other than 0."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment = {"LD_PRELOAD": f"{worker.HERE}/{_HEAP}", "PYTHONHASHSEED": "0", **kept}
    command = [sys.executable, "-S", "-s", "-P", "-B", f"{worker.HERE}/worker.py", package]
    (directory / _HEAP).symlink_to(HEAP)
    (directory / "worker.py").symlink_to(Path(str(worker.__file__)))
    with (
        open(directory / _ERRORS, "wb") as errors,
        subprocess.Popen(
            command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        assert process.stdout is not None
        try:
            yield from map(json.loads, process.stdout)
            code = process.wait()
        finally:
            process.kill()
    if code != 0:
        *_, last = ["", *_printed(directory)]
        said = f" ({one_line(last)})" if last else ""
        raise BuildError(
            f"TensorRT's compiler ended with exit code {code}{said}: if memory was short, build on a machine with "
            "more memory; otherwise report this with network.onnx"
        )
