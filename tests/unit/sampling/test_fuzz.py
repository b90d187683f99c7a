"""fuzz_sampling.cc under the sanitizers."""

import subprocess
from pathlib import Path

import pytest

from tests.unit.batching.cpp_build import SAMPLING, VARIANTS, alone, compile_objects, link

PROGRAM = Path(__file__).with_name("fuzz_sampling.cc")


@pytest.mark.parametrize("variant", VARIANTS)
def test_random_use_is_clean(sampling: Path, variant: str) -> None:
    program, flags = sampling / f"fuzz.{variant}", VARIANTS[variant]
    with alone(sampling):
        if not program.is_file():
            link(program, compile_objects(sampling / variant, [*SAMPLING, PROGRAM], flags), flags)
    result = subprocess.run([program, "1", "150"], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
