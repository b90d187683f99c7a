"""Compiles C++ tests, under the sanitizers, once for all pytest sessions that have the same sources."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CSRC = ROOT / "trtllm_lite" / "csrc"
BATCHING = sorted((CSRC / "batching").glob("*.cc"))
# Flags of csrc/batching, and of the tests themselves: those need no speed, and the sanitizer of undefined behaviour
# doubles the time that they take to compile.
VARIANTS = {
    "asan": ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "tsan": ["-O1", "-g1", "-fsanitize=thread"],
}
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
    for old in parent.iterdir():
        if old != folder:
            shutil.rmtree(old)
    folder.mkdir(exist_ok=True)
    return folder


def compiler(flags: Sequence[str]) -> list[str]:
    """The command line of the C++ compiler, up to the files."""
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-Wall", "-Wextra", "-pthread"]
    return [*command, *flags, f"-I{CSRC}", f"-I{HERE}"]


def compile_objects(folder: Path, sources: Sequence[Path], flags: Sequence[str]) -> list[Path]:
    """Object files of ``sources`` in ``folder``, which is made; those that are there already are taken."""
    folder.mkdir(parents=True, exist_ok=True)
    header = folder / "common.h"  # stands for its compiled form, which the compiler finds beside it

    def compile_one(source: Path, target: Path, *options: str | Path) -> Path:
        if not target.is_file():
            unfinished = target.with_suffix(f".{os.getpid()}")
            subprocess.run([*compiler(flags), *options, source, "-o", unfinished], check=True)
            unfinished.rename(target)
        return target

    def compile_object(source: Path) -> Path:
        return compile_one(source, folder / f"{source.parent.name}-{source.stem}.o", "-include", header, "-c")

    compile_one(HERE / "common.h", header.with_suffix(".h.gch"), "-x", "c++-header")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_object, sources))


def link(executable: Path, objects: Sequence[Path], flags: Sequence[str]) -> None:
    """Link ``objects``, of which the first has a function that several have; the executable appears whole or not."""
    unfinished = executable.with_suffix(f".{os.getpid()}")
    subprocess.run([*compiler(flags), *objects, "-o", unfinished], check=True)
    unfinished.rename(executable)
