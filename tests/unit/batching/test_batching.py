"""Runs the C++ tests of csrc/batching: each as it is, under the address and undefined-behaviour sanitizers, and the
multi-threaded ones under the thread sanitizer.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "trtllm_lite" / "csrc"
SOURCES = sorted(path for path in (CSRC / "batching").glob("*.cc") if not path.name.startswith("bench_"))
VARIANTS = {
    "plain": ["-O2"],
    "asan": ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "tsan": ["-O1", "-g1", "-fsanitize=thread"],
}
SINGLE_THREADED = {"kv_cache_test", "scheduler_test", "allocation_test"}
# It counts allocations in place of the sanitizers' own operator new.
PLAIN_ONLY = {"allocation_test"}


def _cases() -> Iterator[tuple[str, str, str]]:
    for program in sorted(path.stem for path in HERE.glob("*_test.cc")):
        for name in re.findall(r"^TEST\((\w+)\)", (HERE / f"{program}.cc").read_text(), re.MULTILINE):
            for variant in VARIANTS:
                skipped = (variant == "tsan" and program in SINGLE_THREADED) or (
                    variant != "plain" and program in PLAIN_ONLY
                )
                if not skipped:
                    yield variant, program, name


@cache
def _digest() -> str:
    """Of everything compiled here, so that pytest's cache directory serves later sessions too."""
    files = [*CSRC.glob("*.h"), *(CSRC / "batching").iterdir(), *HERE.glob("*.h"), *HERE.glob("*.cc"), Path(__file__)]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Path:
    """The directory of compiled programs; those of earlier sources are removed."""
    assert request.config.cache is not None, "run pytest with its cache provider"
    cached = request.config.cache.mkdir("batching")
    for old in cached.iterdir():
        if old.name != _digest():
            shutil.rmtree(old)
    return cached / _digest()


@cache
def _compiled(directory: Path, variant: str, program: str) -> Path:
    executable = directory / f"{program}.{variant}"
    if executable.is_file():
        return executable
    directory.mkdir(parents=True, exist_ok=True)
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-Wall", "-Wextra", "-pthread"]
    compiler += [*VARIANTS[variant], f"-I{CSRC}", f"-I{HERE}"]
    objects = _objects(directory, variant, tuple(compiler))
    unfinished = executable.with_suffix(f".{os.getpid()}")
    subprocess.run([*compiler, HERE / f"{program}.cc", *objects, "-o", unfinished], check=True)
    unfinished.rename(executable)
    return executable


@cache
def _objects(directory: Path, variant: str, compiler: tuple[str, ...]) -> list[Path]:
    def compile_one(source: Path) -> Path:
        target = directory / f"{source.stem}.{variant}.o"
        subprocess.run([*compiler, "-c", source, "-o", target], check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, SOURCES))


@pytest.mark.parametrize(("variant", "program", "name"), [pytest.param(*case, id="-".join(case)) for case in _cases()])
def test_cpp(programs: Path, variant: str, program: str, name: str):
    run = subprocess.run(
        [_compiled(programs, variant, program), name], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert not run.stderr
