"""The process that reads fuzzed inputs: ``python -m tests.fuzz.child TARGET FIRST_SEED COUNT``.

It prints each seed before it tries it, so that its parent knows which input ended it: by a crash, an exception other
than TrtllmLiteError, or too much memory or time. At last it prints how many inputs were accepted.
"""

import faulthandler
import random
import resource
import shutil
import sys
import tempfile
from pathlib import Path

from tests.fuzz.targets import load_target
from trtllm_lite.errors import TrtllmLiteError

SECONDS = 60  # per input; most take milliseconds
MEMORY = 1 << 30  # address space in bytes that an input may add to the process
MAX_MESSAGE = 10_000  # characters


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _is_accepted(target, directory: Path) -> bool:
    try:
        target.read(directory)
    except TrtllmLiteError as error:
        if len(str(error)) > MAX_MESSAGE:
            raise ValueError(f"message of {len(str(error))} characters exceeds {MAX_MESSAGE}: {error!s:.400}") from None
        return False
    return True


def main(name: str, first: int, count: int) -> None:
    """Try ``count`` inputs of a target."""
    accepted = 0
    with tempfile.TemporaryDirectory(prefix="trtllm-lite-fuzz-") as scratch:
        base, directory = Path(scratch) / "base", Path(scratch) / "input"
        base.mkdir()
        target = load_target(name).Target(base)
        _limit_memory()
        for seed in range(first, first + count):
            print(f"seed {seed}", flush=True)
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            directory.mkdir()
            target.write(random.Random(f"{name} {seed}"), directory)
            accepted += _is_accepted(target, directory)
            faulthandler.cancel_dump_traceback_later()
            shutil.rmtree(directory)
    print(f"accepted {accepted}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
