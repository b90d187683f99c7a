"""Prompts whose tokens are partly rows of embeddings: in chunks, beside others, preempted, with drafts."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.cuda.fake_device.requests import check, greedy, run
from tests.unit.cuda.toy_engine import (
    BYTE_ROW_SIZE,
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
    return _given(prompt, positions, rows)


def bytes_of(prompt: list[int], seed: int) -> tuple[list[int], PromptRows]:
    """The same with rows of bytes."""
    rng = np.random.default_rng(seed)
    positions = np.flatnonzero(rng.random(len(prompt)) < 0.7).astype(np.int32)
    rows = rng.integers(0, 1 << 8, (len(positions), BYTE_ROW_SIZE)).astype(np.uint8)
    rows[:, 1], rows[:, 0] = np.divmod(np.array(prompt, np.uint8)[positions], 8)
    return _given(prompt, positions, rows)


def _given(prompt: list[int], positions: np.ndarray, rows: np.ndarray) -> tuple[list[int], PromptRows]:
    hidden = [0 if i in positions else token for i, token in enumerate(prompt)]
    return hidden, PromptRows(positions, rows.view(np.uint8), b"".join(row.tobytes().ljust(16) for row in rows))


def _engine(directory: Path, **how: Any) -> Engine:
    path = directory / "rows.engine"
    path.write_bytes(to_bytes(make_toy_engine_with_rows(max_draft_len=2, **how)))
    return Engine(str(path))


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return _engine(tmp_path)


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
@pytest.mark.parametrize("of_bytes", [False, True])
def test_rows_are_the_tokens_that_they_stand_for(
    fake_driver: ctypes.CDLL, tmp_path: Path, options: dict[str, Any], of_bytes: bool
) -> None:
    engine, rows_for = _engine(tmp_path, of_bytes=of_bytes), bytes_of if of_bytes else rows_of
    sizes = {"max_batch_size": 4, "max_input_len": 12, "max_seq_len": 24, "max_num_tokens": MAX_NUM_TOKENS}
    executor = CudaExecutor(engine, num_blocks=12 if "max_utilization" in options else 40)
    options = dict(options)
    if options.get("drafting") == "ngram":
        options |= {"drafting": NgramSizes(1, 3), "max_draft_len": 2, "paces_drafts": False}
    loop = EventLoop(executor, **{**sizes, **options})
    given = [rows_for(prompt, seed) for seed, prompt in enumerate(PROMPTS)]
    before = fake_driver.fake_count(b"token_rows")
    answers = run(loop, [(ids, greedy(10)) for ids, _ in given], fake_driver, [{"rows": rows} for _, rows in given])
    for answer, prompt in zip(answers, PROMPTS, strict=True):
        check(answer, prompt, 10)
    assert fake_driver.fake_count(b"token_rows") > before
    stats = loop.stats()
    preemptions = stats["num_swap_preemptions" if options.get("num_host_blocks") else "num_recompute_preemptions"]
    assert (preemptions > 0) == ("max_utilization" in options)


def test_rows_of_bytes_lie_one_behind_the_other(fake_driver: ctypes.CDLL, tmp_path: Path) -> None:
    """A row takes as many bytes of a step as it has, and inputs behind the rows begin at multiples of 64."""
    executor = CudaExecutor(_engine(tmp_path, of_bytes=True), num_blocks=40)
    loop = EventLoop(executor, max_batch_size=1, max_input_len=13, max_seq_len=24, max_num_tokens=MAX_NUM_TOKENS)
    copied = {}
    for num_rows in (12, 13):
        ids, rows = [0] * num_rows, np.ones((num_rows, BYTE_ROW_SIZE), np.uint8)
        before = fake_driver.fake_count(b"to_device_bytes")
        given = PromptRows(np.arange(num_rows, dtype=np.int32), rows, b"".join(bytes(16) for _ in ids))
        (answer,) = run(loop, [(ids, greedy(1))], fake_driver, [{"rows": given}])
        check(answer, [9] * num_rows, 1)
        copied[num_rows] = fake_driver.fake_count(b"to_device_bytes") - before
    assert copied[13] - copied[12] == 64  # 60 and 65 bytes of rows


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
