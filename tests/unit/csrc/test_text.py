"""Runs the C++ test of csrc/text under the sanitizers."""

from pathlib import Path

import pytest

from tests.unit.sanitized import VARIANTS, Sanitized

TEST = Path(__file__).with_name("text_test.cc")


@pytest.mark.parametrize("variant", VARIANTS)
def test_random_use_is_clean(sanitized: Sanitized, variant: str) -> None:
    sanitized.run(sanitized.program(variant, TEST.stem, [TEST], ["text"]))
