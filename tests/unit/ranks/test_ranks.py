"""Runs the C++ tests of csrc/ranks under the sanitizers of memory, undefined behaviour and threads."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.unit.batching.cpp_build import CSRC, PROGRAMS, VARIANTS, alone, cached_folder, compile_objects, link

PROGRAM = Path(__file__).parent / "ranks_test.cc"
RANKS = [CSRC / "ranks" / f"{name}.cc" for name in ("collectives", "failed_rank", "rank_meeting")]
NAMES = re.findall(r"^TEST\((\w+)\)", PROGRAM.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_cpp(pytestconfig: pytest.Config, variant: str, name: str) -> None:
    folder = cached_folder(pytestconfig, "ranks", [*(CSRC / "ranks").glob("*.h"), *RANKS, PROGRAM])
    executable = folder / f"ranks.{variant}"
    with alone(folder):
        if not executable.is_file():
            objects = compile_objects(folder / variant, RANKS, VARIANTS[variant])
            objects += compile_objects(folder / f"{variant}-program", [PROGRAM], PROGRAMS[variant])
            link(executable, objects, VARIANTS[variant])
    run = subprocess.run([executable, name], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    assert not run.stderr
