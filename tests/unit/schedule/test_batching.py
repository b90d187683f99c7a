"""Runs the C++ tests of csrc/schedule under sanitizers.

All run under the address and undefined-behaviour sanitizers, the multi-threaded ones also under the thread sanitizer.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sanitized import Sanitized, names_of_tests

HERE = Path(__file__).parent
SOURCES = sorted(HERE.glob("*_test.cc"))
# Tests with several threads, which also run under the thread sanitizer.
MULTI_THREADED = [path for path in SOURCES if path.stem in {"encoder_loop_test", "event_loop_test", "stress_test"}]
TESTS = {"asan": SOURCES, "tsan": MULTI_THREADED}


def _cases() -> Iterator[tuple[str, str]]:
    for variant, sources in TESTS.items():
        for source in sources:
            for name in names_of_tests(source):
                yield variant, name


@pytest.mark.parametrize(("variant", "name"), [pytest.param(*case, id="-".join(case)) for case in _cases()])
def test_cpp(sanitized: Sanitized, variant: str, name: str) -> None:
    sources = [*TESTS[variant], HERE / "tests_main.cc"]
    sanitized.run(sanitized.program(variant, "batching_tests", sources, ["batching"]), name)
