"""row_sampler_memory.cc: a request that asks for more memory than there is fails alone."""

import subprocess
from pathlib import Path

from tests.unit.batching.cpp_build import SAMPLING, VARIANTS, alone, compile_objects, compile_together, link

PROGRAM = Path(__file__).with_name("row_sampler_memory.cc")


def test_too_little_memory_fails_one_request(sampling: Path) -> None:
    program = sampling / "row_sampler_memory"
    flags = VARIANTS["asan"]
    with alone(sampling):
        if not program.is_file():
            objects = compile_objects(sampling / "asan", [PROGRAM], flags)
            link(program, [*objects, *compile_together(sampling / "asan", SAMPLING, flags)], flags)
    run = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
