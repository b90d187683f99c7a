"""C++ tests of csrc/sampling under the sanitizers."""

from pathlib import Path

import pytest

from tests.unit.sanitized import VARIANTS, Sanitized

PROGRAMS = {"fuzz_sampling": ["1"], "mask_threads_test": []}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_random_use_is_clean(sanitized: Sanitized, name: str, variant: str) -> None:
    program = sanitized.program(variant, name, [Path(__file__).with_name(f"{name}.cc")], ["sampling", "process"])
    sanitized.run(program, *PROGRAMS[name])
