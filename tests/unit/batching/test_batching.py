"""Runs the C++ tests of csrc/batching: under the address and undefined-behaviour sanitizers, the multi-threaded ones
under the thread sanitizer, too.
"""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.batching.cpp_build import (
    BATCHING,
    COMMON,
    HERE,
    PROGRAMS,
    VARIANTS,
    alone,
    compile_objects,
    compile_together,
    link,
)

# Where several threads run, the thread sanitizer watches, too.
MULTI_THREADED = {"event_loop_test", "stress_test"}


def _cases() -> Iterator[tuple[str, str, str]]:
    for program in sorted(path.stem for path in HERE.glob("*_test.cc")):
        for name in re.findall(r"^TEST\((\w+)\)", (HERE / f"{program}.cc").read_text(), re.MULTILINE):
            for variant in ("asan", "tsan") if program in MULTI_THREADED else ("asan",):
                yield variant, program, name


@cache
def _compiled(directory: Path, variant: str) -> dict[str, Path]:
    """The programs of a variant by name, compiled at the same time unless they are there already."""
    names = sorted({program for of_variant, program, _ in _cases() if of_variant == variant})
    executables = {name: directory / f"{name}.{variant}" for name in names}
    with alone(directory):
        missing = [name for name, executable in executables.items() if not executable.is_file()]
        if missing:
            objects = compile_together(directory / variant, BATCHING, VARIANTS[variant], COMMON)
            sources = [HERE / f"{name}.cc" for name in missing]
            programs = compile_objects(directory / f"{variant}-programs", sources, PROGRAMS[variant], COMMON)
            for name, program in zip(missing, programs, strict=True):
                link(executables[name], [*objects, program], VARIANTS[variant])
    return executables


@pytest.mark.parametrize(("variant", "program", "name"), [pytest.param(*case, id="-".join(case)) for case in _cases()])
def test_cpp(programs: Path, variant: str, program: str, name: str):
    run = subprocess.run(
        [_compiled(programs, variant)[program], name], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert not run.stderr
