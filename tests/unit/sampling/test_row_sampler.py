"""row_sampler_memory.cc: a request that asks for more memory than there is fails alone."""

from pathlib import Path

from tests.unit.sanitized import Sanitized

PROGRAM = Path(__file__).with_name("row_sampler_memory.cc")


def test_too_little_memory_fails_one_request(sanitized: Sanitized) -> None:
    sanitized.run(sanitized.program("asan", PROGRAM.stem, [PROGRAM], ["sampling", "process"]))
