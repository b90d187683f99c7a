"""Encoders on a fake driver: texts of a step, what is read back, and what is refused."""

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.csrc.tiny_engine import TinyEngine
from tests.unit.cuda.toy_encoder import SIZE, encoder_bytes, make_toy_encoder
from tests.unit.cuda.toy_engine import MAX_BATCH_SIZE, MAX_NUM_TOKENS, MAX_SEQ_LEN, PAGE, VOCAB, extent
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


LONG_TOKENS = 1200
LONG, OTHER_LONG, SHORT = [[1, 2, 3] * 300], [[2] * 700], [[3, 4, 5], [7] * 40, [9] * 4]


@contextmanager
def held_but_urgent(fake_driver: ctypes.CDLL) -> Iterator[None]:
    """Let steps of short texts end inside the block, but no step of long ones."""
    fake_driver.fake_hold(2)
    try:
        yield
    finally:
        fake_driver.fake_hold(0)
        fake_driver.fake_num_waiting()  # the device goes on by itself


def _wait_for_launches(fake_driver: ctypes.CDLL, count: int) -> None:
    while fake_driver.fake_count(b"launched") < count:
        time.sleep(0)


def _long_executor(directory: Path, toy: TinyEngine | None = None) -> CudaExecutor:
    """An executor of a toy encoder that takes long texts."""
    path = directory / "long.engine"
    path.write_bytes(encoder_bytes(toy or make_toy_encoder(LONG_TOKENS)))
    return CudaExecutor(Engine(str(path)))


def _long_embedder(executor: CudaExecutor) -> Embedder:
    manifest: Any = SimpleNamespace(
        kv_cache=SimpleNamespace(tokens_per_block=PAGE), model=SimpleNamespace(max_position_embeddings=LONG_TOKENS)
    )
    limits = EmbedderLimits(MAX_BATCH_SIZE, LONG_TOKENS, LONG_TOKENS)
    return Embedder(manifest, limits, executor, EmbeddingPump(encoder_loop(_core, executor, limits)), None)


@pytest.fixture
def long_embedder(tmp_path: Path) -> Iterator[Embedder]:
    """An embedder of a toy encoder that takes long texts."""
    made = _long_embedder(_long_executor(tmp_path))
    yield made
    made.close()


@pytest.mark.parametrize("num_run", range(7))
def test_short_texts_pass_a_long_one(long_embedder: Embedder, fake_driver: ctypes.CDLL, num_run: int) -> None:
    """Wherever the long text's step is, steps beside it write to none of its memory, nor it to theirs."""
    launched = fake_driver.fake_count(b"launched")
    with held_but_urgent(fake_driver):
        long = long_embedder.submit(_arrays(LONG))
        _wait_for_launches(fake_driver, launched + 3)
        fake_driver.fake_run(num_run)
        short = [long_embedder.submit(_arrays([text])) for text in SHORT]
        assert [handle.result().tolist() for handle in short] == [_expected([text]) for text in SHORT]
        assert fake_driver.fake_count(b"map_rows") == 512
        assert not long.ended
        assert long_embedder.embed(_arrays(SHORT)).tolist() == _expected(SHORT)
        assert not long.ended
    assert long.result().tolist() == _expected(LONG)
    assert fake_driver.fake_count(b"map_rows") == (LONG_TOKENS if num_run < 5 else 512)
    assert fake_driver.fake_count(b"map_offset") == 0


def test_long_texts_without_short_ones(long_embedder: Embedder, fake_driver: ctypes.CDLL) -> None:
    """Steps of long texts that follow each other, held and not."""
    texts = [LONG[0], OTHER_LONG[0], LONG[0][:513], LONG[0][:512]]
    assert long_embedder.embed(_arrays(texts)).tolist() == _expected(texts)
    with held_but_urgent(fake_driver):
        handles = [long_embedder.submit(_arrays([text])) for text in texts]
    assert [handle.result().tolist() for handle in handles] == [_expected([text]) for text in texts]


def test_a_long_text_is_cancelled_while_short_ones_pass(long_embedder: Embedder, fake_driver: ctypes.CDLL) -> None:
    launched = fake_driver.fake_count(b"launched")
    with held_but_urgent(fake_driver):
        long = long_embedder.submit(_arrays(LONG))
        _wait_for_launches(fake_driver, launched + 3)
        long.cancel()
        with pytest.raises(EngineError, match="cancelled"):
            long.result()
        assert long_embedder.embed(_arrays(SHORT)).tolist() == _expected(SHORT)
        other = long_embedder.submit(_arrays(OTHER_LONG))
        assert long_embedder.embed(_arrays(SHORT)).tolist() == _expected(SHORT)
        assert not other.ended
    assert other.result().tolist() == _expected(OTHER_LONG)
    assert long_embedder.embed(_arrays(LONG)).tolist() == _expected(LONG)


def test_a_device_that_fails_fails_long_and_short_texts(
    long_embedder: Embedder, fake_driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = fake_driver.fake_count(b"launched")
    with held_but_urgent(fake_driver):
        long = long_embedder.submit(_arrays(LONG))
        _wait_for_launches(fake_driver, launched + 3)
        monkeypatch.setenv("FAKE_DEAD", "1")
        short = long_embedder.submit(_arrays(SHORT))
        for handle in (short, long):
            with pytest.raises(EngineError, match="was not embedded"):
                handle.result()
    assert long_embedder.is_broken


def test_a_step_that_is_not_launched_fails_alone(
    long_embedder: Embedder, fake_driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = fake_driver.fake_count(b"launched")
    with held_but_urgent(fake_driver):
        long = long_embedder.submit(_arrays(LONG))
        _wait_for_launches(fake_driver, launched + 3)
        monkeypatch.setenv("FAKE_REFUSING_GPU", "0")
        with pytest.raises(EngineError, match="the text was not embedded: launching"):
            long_embedder.embed(_arrays(SHORT[:1]))
        monkeypatch.delenv("FAKE_REFUSING_GPU")
        assert long_embedder.embed(_arrays(SHORT)).tolist() == _expected(SHORT)
        assert not long.ended
    assert long.result().tolist() == _expected(LONG)


def test_memory_of_steps_beside_long_ones(tmp_path: Path, fake_driver: ctypes.CDLL) -> None:
    """The tensors of the largest step of short texts, one after the other, and its inputs."""
    executor = _long_executor(tmp_path)
    limits = EmbedderLimits(MAX_BATCH_SIZE, LONG_TOKENS, LONG_TOKENS)
    alone, allocated = executor.memory["workspace"], fake_driver.fake_allocated()
    free, total, pointer = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
    fake_driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    fake_driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(free.value - 1000))
    with pytest.raises(LimitError, match="workspace of short texts beside long ones: expected 1 MiB free"):
        encoder_loop(_core, executor, limits)
    fake_driver.cuMemFree_v2(pointer)
    assert (executor.memory["workspace"], fake_driver.fake_allocated()) == (alone, allocated)
    loop = encoder_loop(_core, executor, limits)
    more = executor.memory["workspace"] - alone
    assert fake_driver.fake_allocated() - allocated == more
    arena = 512 * 4 + 256 + 512 * 64 * 2
    assert arena < more < arena + 8 * 512 * 4
    loop.shut_down()


def test_products_of_steps_at_once_share_no_workspace(tmp_path: Path, fake_driver: ctypes.CDLL) -> None:
    toy = make_toy_encoder(LONG_TOKENS)
    halves = {"tensor": len(toy.plan["tensors"]) - 1, "offset": 0}
    form = {"dtype": "float32", "shape": ["num_tokens", 50], "layout": "row_major", "kind": "arena"}
    toy.plan["tensors"].append({"name": "scores", **form, "offset": 256 * (-(-toy.plan["arena_bytes"] // 256))})
    toy.plan["arena_bytes"] = toy.plan["tensors"][-1]["offset"] + LONG_TOKENS * 50 * 4
    product = {
        "kind": "matmul",
        **{"x": halves, "weight": halves, "y": {"tensor": halves["tensor"] + 1, "offset": 0}},
        **{"bias": None, "residual": None, "rows": extent("num_tokens"), "out_features": 50, "in_features": 16},
        **{"dtype": "bfloat16", "out_dtype": "float32", "algorithms": []},
    }
    toy.plan["programs"][0]["instructions"].insert(0, product)
    toy.plan["cuda"]["workspace_bytes"] = 4096
    library = ctypes.CDLL("libcublasLt.so.13")
    library.fake_workspace_users.restype = ctypes.c_int64
    embedder = _long_embedder(_long_executor(tmp_path, toy))
    library.fake_workspace_users()
    launched = fake_driver.fake_count(b"launched")
    with held_but_urgent(fake_driver):
        long = embedder.submit(_arrays(LONG))
        _wait_for_launches(fake_driver, launched + 3)
        assert embedder.embed(_arrays(SHORT)).tolist() == _expected(SHORT)
    assert long.result().tolist() == _expected(LONG)
    assert library.fake_workspace_users() == 1
    embedder.close()
