"""Compiles C++ tests, under the sanitizers, once for all processes of pytest that have the same sources."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CSRC = ROOT / "trtllm_lite" / "csrc"
BATCHING = sorted([*(CSRC / "batching").glob("*.cc"), *(CSRC / "speculation").glob("*.cc")])
SAMPLING = sorted([*(CSRC / "sampling").glob("*.cc"), CSRC / "cpu_count.cc", CSRC / "niceness.cc"])
COMMON = HERE / "common.h"  # what csrc/batching and its tests include
# Flags of what is tested, and of the tests themselves: those need no speed, and the sanitizer of undefined behaviour
# doubles the time that they take to compile.
VARIANTS = {
    "asan": ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "tsan": ["-O1", "-g1", "-fsanitize=thread"],
}
_TOGETHER = 6  # sources in a batch: enough that most time is spent on them, few enough to compile batches side by side
PROGRAMS = {
    "asan": ["-O0", "-g1", "-fsanitize=address"],
    "tsan": ["-O0", "-g1", "-fsanitize=thread"],
}


def cached_folder(config: pytest.Config, name: str, files: Iterable[Path]) -> Path:
    """A folder of pytest's cache for what is compiled of ``files``; those of earlier contents are removed."""
    assert config.cache is not None, "run pytest with its cache provider"
    digest = hashlib.sha256()
    for path in sorted([*files, Path(__file__)]):
        digest.update(path.read_bytes())
    parent = config.cache.mkdir(name)
    folder = Path(parent / digest.hexdigest()[:16])
    with alone(parent):
        for old in parent.iterdir():
            if old.is_dir() and old != folder:
                shutil.rmtree(old)
                old.with_suffix(".lock").unlink(missing_ok=True)
        folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """No other process compiles into ``folder`` meanwhile: one of pytest's workers does, and the others wait for it."""
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compiler(flags: Sequence[str]) -> list[str]:
    """The command line of the C++ compiler, up to the files."""
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-Wall", "-Wextra", "-pthread"]
    return [*command, *flags, f"-I{CSRC}", f"-I{HERE}"]


def compile_objects(
    folder: Path, sources: Sequence[Path], flags: Sequence[str], common: Path | None = None
) -> list[Path]:
    """Object files of ``sources`` in ``folder``, which is made; those that are there already are taken.

    ``common``: a header to compile first, where parsing it takes most sources longer than reading its compiled form.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options: list[str | Path] = ["-c"]

    def compile_one(source: Path, target: Path, options: Sequence[str | Path]) -> Path:
        if not target.is_file():
            unfinished = target.with_suffix(f".{os.getpid()}")
            subprocess.run([*compiler(flags), *options, source, "-o", unfinished], check=True)
            unfinished.rename(target)
        return target

    def compile_object(source: Path) -> Path:
        return compile_one(source, folder / f"{source.parent.name}-{source.stem}.o", options)

    if common is not None:
        compile_one(common, folder / f"{common.name}.gch", ["-x", "c++-header"])
        options += ["-include", folder / common.name]  # the compiler finds the compiled form beside that name
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_object, sources))


def compile_together(
    folder: Path, sources: Sequence[Path], flags: Sequence[str], common: Path | None = None
) -> list[Path]:
    """As :func:`compile_objects`, some sources of a folder at a time: the headers that most of them take are read once.

    So names must be unique in a folder, also those of anonymous namespaces.
    """
    folder.mkdir(parents=True, exist_ok=True)
    batches = []
    for parent in sorted({source.parent for source in sources}):
        of_parent = sorted(source for source in sources if source.parent == parent)
        for start in range(0, len(of_parent), _TOGETHER):
            batch = folder / f"{parent.name}-{start}.cc"
            batch.write_text("".join(f'#include "{source}"\n' for source in of_parent[start : start + _TOGETHER]))
            batches.append(batch)
    return compile_objects(folder, batches, flags, common)


def link(executable: Path, objects: Sequence[Path], flags: Sequence[str]) -> None:
    """Link ``objects``, of which the first has a function that several have; the executable appears whole or not."""
    unfinished = executable.with_suffix(f".{os.getpid()}")
    subprocess.run([*compiler(flags), *objects, "-o", unfinished], check=True)
    unfinished.rename(executable)
