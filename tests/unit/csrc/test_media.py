"""Runs the C++ test of csrc/media under the sanitizer of memory."""

from pathlib import Path

from tests.unit.sanitized import Sanitized

TEST = Path(__file__).with_name("media_test.cc")


def test_no_byte_outside_of_images_is_used(sanitized: Sanitized) -> None:
    sanitized.run(sanitized.program("asan", TEST.stem, [TEST], ["media"]))
