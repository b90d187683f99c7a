"""Prompts whose tokens are partly rows of embeddings: in chunks, beside others, preempted, with drafts."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.cuda.fake_device.requests import check, greedy, run
from tests.unit.cuda.toy_engine import (
    MAX_NUM_TOKENS,
    TOKEN_ROW_SIZE,
    make_toy_engine,
    make_toy_engine_with_rows,
    to_bytes,
)
from trtllm_lite._core import CudaExecutor, Engine, EventLoop, NgramSizes, PromptRows
from trtllm_lite.errors import LimitError

PROMPTS = [[4, 9, 2, 30, 1, 1, 5], [8, 1], [7] * 11, [5], [3, 3, 3, 20, 17, 2, 40, 9, 1]]


def rows_of(prompt: list[int], seed: int, size: int = TOKEN_ROW_SIZE) -> tuple[list[int], PromptRows]:
    """The prompt with another token in place of some, and the rows that stand for these."""
    rng = np.random.default_rng(seed)
    positions = np.flatnonzero(rng.random(len(prompt)) < 0.7).astype(np.int32)
    rows = rng.integers(0, 1 << 16, (len(positions), size)).astype(np.uint16)
    rows[:, 0] = np.array(prompt, np.uint16)[positions]
    hidden = [0 if i in positions else token for i, token in enumerate(prompt)]
    return hidden, PromptRows(positions, rows.view(np.uint8), b"".join(row.tobytes().ljust(16) for row in rows))


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(make_toy_engine_with_rows(max_draft_len=2)))
    return Engine(str(path))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_tokens": 5},
        {"max_utilization": True, "num_host_blocks": 0},
        {"max_utilization": True, "num_host_blocks": 20},
        {"drafting": "ngram"},
    ],
)
def test_rows_are_the_tokens_that_they_stand_for(
    fake_driver: ctypes.CDLL, engine: Engine, options: dict[str, Any]
) -> None:
    sizes = {"max_batch_size": 4, "max_input_len": 12, "max_seq_len": 24, "max_num_tokens": MAX_NUM_TOKENS}
    executor = CudaExecutor(engine, num_blocks=12 if "max_utilization" in options else 40)
    options = dict(options)
    if options.get("drafting") == "ngram":
        options |= {"drafting": NgramSizes(1, 3), "max_draft_len": 2, "paces_drafts": False}
    loop = EventLoop(executor, **{**sizes, **options})
    given = [rows_of(prompt, seed) for seed, prompt in enumerate(PROMPTS)]
    before = fake_driver.fake_count(b"token_rows")
    answers = run(loop, [(ids, greedy(10)) for ids, _ in given], fake_driver, [{"rows": rows} for _, rows in given])
    for answer, prompt in zip(answers, PROMPTS, strict=True):
        check(answer, prompt, 10)
    assert fake_driver.fake_count(b"token_rows") > before
    stats = loop.stats()
    preemptions = stats["num_swap_preemptions" if options.get("num_host_blocks") else "num_recompute_preemptions"]
    assert (preemptions > 0) == ("max_utilization" in options)


def test_rows_that_do_not_fit_are_refused(engine: Engine, tmp_path: Path) -> None:
    limits = {"max_batch_size": 2, "max_input_len": 12, "max_seq_len": 24, "max_num_tokens": 8}
    loop = EventLoop(CudaExecutor(engine, num_blocks=20), **limits)
    ids, rows = rows_of([4, 9, 2, 30], 0, TOKEN_ROW_SIZE - 1)
    with pytest.raises(LimitError, match="prompt embeddings of 16 bytes each, found 14"):
        loop.submit(np.array(ids, np.int32), greedy(3), rows=rows)
    ids, rows = rows_of([4, 9, 2, 30], 0)
    with pytest.raises(LimitError, match=r"positions of prompt embeddings in .* 1"):
        loop.submit(np.array(ids[:2], np.int32), greedy(3), rows=rows)
    with pytest.raises(LimitError, match="expected a row and a digest of 16 bytes for each position, found 2"):
        PromptRows(np.array([0, 1], np.int32), np.zeros((2, 16), np.uint8), b"0" * 16)
    path = tmp_path / "plain.engine"
    path.write_bytes(to_bytes(make_toy_engine()))
    plain = EventLoop(CudaExecutor(Engine(str(path)), num_blocks=20), **limits)
    with pytest.raises(LimitError, match="expected a prompt of tokens alone"):
        plain.submit(np.array(ids, np.int32), greedy(3), rows=rows)
