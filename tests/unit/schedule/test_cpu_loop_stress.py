"""cpu_loop_stress.cc, the event loop over the CPU executor, under the thread sanitizer.

The suite runs few requests; before a release, run ``TRTLLM_LITE_STRESS_REQUESTS=10000 pytest <this file>``.
"""

import os
from pathlib import Path

import pytest

from tests.unit.csrc.tiny_engine import MAX_NUM_TOKENS, VOCAB, make_tiny_engine
from tests.unit.sanitized import PARTS, Sanitized

NUM_REQUESTS = os.environ.get("TRTLLM_LITE_STRESS_REQUESTS", "1000")
MAX_BATCH_SIZE = 8
POISON = VOCAB - 1
PROGRAM = Path(__file__).with_name("cpu_loop_stress.cc")


@pytest.fixture(scope="module")
def engine_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny engine for batches of 8, with one poisoned token."""
    tiny = make_tiny_engine()
    tiny.set_limits(MAX_BATCH_SIZE, num_logits=MAX_NUM_TOKENS)
    tiny.poison(POISON)
    path = tmp_path_factory.mktemp("engine") / "rank0.engine"
    path.write_bytes(tiny.to_bytes())
    return path


def test_random_requests_are_clean(sanitized: Sanitized, engine_path: Path) -> None:
    program = sanitized.program("tsan", PROGRAM.stem, [PROGRAM], list(PARTS))
    sanitized.run(program, engine_path, NUM_REQUESTS, str(POISON))
