"""Runs the C++ tests of csrc/ranks under the sanitizers of memory, undefined behaviour and threads."""

from pathlib import Path

import pytest

from tests.unit.sanitized import VARIANTS, Sanitized, names_of_tests

PROGRAM = Path(__file__).parent / "ranks_test.cc"


@pytest.mark.parametrize("name", names_of_tests(PROGRAM))
@pytest.mark.parametrize("variant", VARIANTS)
def test_cpp(sanitized: Sanitized, variant: str, name: str) -> None:
    sanitized.run(sanitized.program(variant, PROGRAM.stem, [PROGRAM], ["ranks"]), name)
