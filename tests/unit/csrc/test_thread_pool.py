"""ThreadPool keeps its promises, and ThreadSanitizer sees no race."""

from pathlib import Path

from tests.unit.sanitized import Sanitized

TEST = Path(__file__).with_name("thread_pool_test.cc")


def test_thread_pool(sanitized: Sanitized) -> None:
    sanitized.run(sanitized.program("tsan", TEST.stem, [TEST], ["threads"]))
