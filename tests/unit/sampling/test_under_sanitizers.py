"""C++ tests of csrc/sampling under the sanitizers."""

import subprocess
from pathlib import Path

import pytest

from tests.unit.batching.cpp_build import SAMPLING, VARIANTS, alone, compile_objects, compile_together, link

PROGRAMS = {"fuzz_sampling": ["1", "150"], "mask_threads_test": []}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_random_use_is_clean(sampling: Path, name: str, variant: str) -> None:
    program, source, flags = sampling / f"{name}.{variant}", Path(__file__).with_name(f"{name}.cc"), VARIANTS[variant]
    with alone(sampling):
        if not program.is_file():
            objects = compile_objects(sampling / variant, [source], flags)
            link(program, [*objects, *compile_together(sampling / variant, SAMPLING, flags)], flags)
    result = subprocess.run([program, *PROGRAMS[name]], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
