"""Runs the C++ tests of csrc/batching: each as it is, under the address and undefined-behaviour sanitizers, and the
multi-threaded ones under the thread sanitizer.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from tests.unit.batching.cpp_build import BATCHING, HERE, VARIANTS, compile_objects, link

SINGLE_THREADED = {"kv_cache_test", "scheduler_test", "beams_test", "allocation_test", "policy_test", "request_test"}
# This program counts allocations in place of the sanitizers' own operator new.
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
def _compiled(directory: Path, variant: str) -> dict[str, Path]:
    """The programs of a variant by name, compiled at the same time unless they are there already."""
    names = sorted({program for of_variant, program, _ in _cases() if of_variant == variant})
    executables = {name: directory / f"{name}.{variant}" for name in names}
    missing = {name: executable for name, executable in executables.items() if not executable.is_file()}
    if missing:
        objects = compile_objects(directory / variant, BATCHING, VARIANTS[variant])
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda name: link(missing[name], HERE / f"{name}.cc", objects, VARIANTS[variant]), missing))
    return executables


@pytest.mark.parametrize(("variant", "program", "name"), [pytest.param(*case, id="-".join(case)) for case in _cases()])
def test_cpp(programs: Path, variant: str, program: str, name: str):
    run = subprocess.run(
        [_compiled(programs, variant)[program], name], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert not run.stderr
