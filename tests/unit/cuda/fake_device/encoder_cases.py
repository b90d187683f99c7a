"""Encoders on a fake driver: texts of a step, what is read back, and what is refused."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.cuda.toy_encoder import SIZE, encoder_bytes, make_toy_encoder
from tests.unit.cuda.toy_engine import MAX_BATCH_SIZE, MAX_NUM_TOKENS, MAX_SEQ_LEN, PAGE, VOCAB
from trtllm_lite import _core
from trtllm_lite._core import CudaExecutor, Engine
from trtllm_lite.errors import ArgumentError, EngineError, LimitError
from trtllm_lite.runtime.session.embedder import Embedder, EmbedderLimits, encoder_loop
from trtllm_lite.runtime.session.embedding_pump import EmbeddingPump

TEXTS = [[3, 4, 5], [7], [1] * 20, [2, 2], [9] * 4]


def _engine(directory: Path, **manifest: Any) -> Engine:
    toy = make_toy_encoder()
    toy.manifest |= manifest
    (directory / "rank0.engine").write_bytes(encoder_bytes(toy))
    return Engine(str(directory / "rank0.engine"))


@pytest.fixture
def encoder(tmp_path: Path) -> CudaExecutor:
    """An executor of the toy encoder."""
    return CudaExecutor(_engine(tmp_path))


@pytest.fixture
def embedder(encoder: CudaExecutor) -> Iterator[Embedder]:
    """The encoder, ready to embed."""
    manifest: Any = SimpleNamespace(
        kv_cache=SimpleNamespace(tokens_per_block=PAGE), model=SimpleNamespace(max_position_embeddings=MAX_SEQ_LEN)
    )
    limits = EmbedderLimits(MAX_BATCH_SIZE, MAX_NUM_TOKENS, MAX_NUM_TOKENS)
    made = Embedder(manifest, limits, encoder, EmbeddingPump(encoder_loop(_core, encoder, limits)), None)
    yield made
    made.close()


def _arrays(texts: list[list[int]]) -> list[np.ndarray]:
    return [np.array(text, np.int32) for text in texts]


def _expected(texts: list[list[int]]) -> list[list[float]]:
    return [[float(sum(text) * (place + 1)) for place in range(SIZE)] for text in texts]


def test_texts_are_embedded_in_steps(embedder: Embedder, fake_driver: ctypes.CDLL) -> None:
    """Three texts fill a step; memory is taken before the first."""
    assert embedder.embed(_arrays(TEXTS)).tolist() == _expected(TEXTS)
    allocated = fake_driver.fake_allocated()
    assert embedder.embed(_arrays(TEXTS[::-1])).tolist() == _expected(TEXTS[::-1])
    assert embedder.embed(_arrays(TEXTS[2:3])).tolist() == _expected(TEXTS[2:3])
    assert fake_driver.fake_allocated() == allocated


def test_inputs_are_checked(encoder: CudaExecutor) -> None:
    nothing, tables = np.zeros(0, np.int32), np.zeros((0, 1), np.int32)
    one, zero = np.ones(1, np.int32), np.zeros(1, np.int32)
    with pytest.raises(LimitError, match=rf"token_ids\[0\]: expected 0 to {VOCAB - 1}, found {VOCAB}"):
        _core.compute(encoder, one * VOCAB, one, zero, tables, nothing)
    with pytest.raises(LimitError, match=f"number of tokens: expected 1 to {MAX_NUM_TOKENS}"):
        _core.compute(encoder, np.ones(MAX_NUM_TOKENS + 1, np.int32), one * (MAX_NUM_TOKENS + 1), zero, tables, nothing)


def test_nothing_is_generated(encoder: CudaExecutor) -> None:
    nothing, tables = np.zeros(0, np.int32), np.zeros((0, 1), np.int32)
    one, zero = np.ones(1, np.int32), np.zeros(1, np.int32)
    with pytest.raises(ArgumentError, match="expected an engine that makes logits, found an encoder"):
        _core.step(encoder, one, one, zero, tables, nothing)


def test_a_device_that_fails_breaks_the_embedder(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not embedder.is_broken
    monkeypatch.setenv("FAKE_DEAD", "1")
    with pytest.raises(EngineError, match="text 0 was not embedded"):
        embedder.embed(_arrays(TEXTS))
    assert embedder.is_broken


def test_ranks_and_other_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="expected an encoder for one rank on a CPU or a GPU, found another"):
        _engine(tmp_path, mapping=make_toy_encoder().manifest["mapping"] | {"tp_size": 2})
    (module,) = make_toy_encoder().modules()
    other = module | {"outputs": [port | {"shape": ["num_seqs", 16]} for port in module["outputs"]]}
    wanted = r"expected sentence_embedding float32 \[num_seqs, 16\] to be an output of the plan"
    with pytest.raises(EngineError, match=wanted):
        _engine(tmp_path, modules=[other])
