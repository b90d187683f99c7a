"""Runs the C++ test of ThreadPool, which ThreadSanitizer must find free of races."""

from pathlib import Path

from tests.unit.sanitized import Sanitized

TEST = Path(__file__).with_name("thread_pool_test.cc")


def test_thread_pool(sanitized: Sanitized) -> None:
    sanitized.run(sanitized.program("tsan", TEST.stem, [TEST], ["threads"]))
