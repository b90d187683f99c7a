"""A toy model with rows of bytes, such as the pixels of a picture, in place of tokens: normed, and multiplied."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from transformers import PreTrainedModel

from tests.e2e.llm import GREEDY, LIMITS
from tests.models import VOCAB_SIZE
from trtllm_lite import LLM, KvCacheConfig
from trtllm_lite.builder import build_engine, pipeline
from trtllm_lite.builder.graph import fused_node, nodes_of, value_of
from trtllm_lite.builder.passes.contract import GraphPass
from trtllm_lite.common.vocabulary import TOKEN_ROWS, UINT8
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import ArgumentError, BuildError
from trtllm_lite.network.tensors import add_initializer
from trtllm_lite.plugins.schema import DOMAIN, all_schemas
from trtllm_lite.runtime.session.config import SchedulerConfig

SIZE = 75  # bytes of a row, such as 5 x 5 pixels of three colours: no multiple of the width of a vector
NORM = {"program": "x0 c0 mul c1 sub", "x1_first": 0}
FACTOR, SHIFT = np.float32(1 / 127.5), np.float32(1)


def _product(hidden: int) -> np.ndarray:
    return np.random.default_rng(3).normal(0, 0.2, (hidden, SIZE)).astype(np.float32)


def embeddings_of(rows: np.ndarray, hidden: int) -> np.ndarray:
    """What the toy model makes of rows of bytes."""
    return (rows.astype(np.float32) * FACTOR - SHIFT) @ _product(hidden).T


def _take_bytes(graph: ir.Graph) -> list[Any]:
    """Lets bytes take the place of tokens: a Rowwise and a Linear make rows of the network's embeddings of them."""
    (embedding,) = nodes_of(graph, "Embedding", DOMAIN)
    hidden = embedding.outputs[0].shape[1]
    given = value_of(TOKEN_ROWS, ir.DataType.UINT8, ["num_token_rows", SIZE])
    normed = value_of("normed_rows", ir.DataType.FLOAT, ["num_token_rows", SIZE])
    made = value_of("made_rows", ir.DataType.FLOAT, ["num_token_rows", hidden])
    graph.inputs.append(given)
    constants = add_initializer(graph, "row_norm", ir.tensor(np.array([FACTOR, SHIFT]), name="row_norm"))
    weight = add_initializer(graph, "row_product", ir.tensor(_product(hidden), name="row_product"))
    norm = fused_node("Rowwise", "norm_rows", {"x0": given, "constants": constants}, {"y": normed}, NORM)
    product = fused_node("Linear", "make_rows", {"x": normed, "weight": weight}, {"y": made}, {"activation": "none"})
    for node in (norm, product):
        graph.insert_before(embedding, node)
    names = [argument.name for argument in all_schemas()["Embedding"].inputs]
    embedding.resize_inputs(len(names))
    embedding.replace_input_with(names.index(TOKEN_ROWS), made)
    return []


@pytest.fixture(scope="module")
def checkpoint(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bytes") / "checkpoint"
    convert_checkpoint(str(model_dir), path)
    return path


def _build(checkpoint: Path, out: Path, **options: Any) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "TAKE_TOKEN_ROWS", GraphPass("take_bytes", _take_bytes))
        build_engine(checkpoint, out, enable_prompt_embeds=True, tokens_per_block=16, **LIMITS, **options)
    return out


@pytest.fixture(scope="module")
def engine_dir(checkpoint: Path) -> Path:
    return _build(checkpoint, checkpoint.parent / "engine")


@pytest.fixture(scope="module")
def bytes_llm(engine_dir: Path) -> Iterator[LLM]:
    with LLM(engine_dir) as llm:
        yield llm


def _prompts(count: int, longest: int) -> list[dict[str, Any]]:
    """Prompts of which some tokens are rows of bytes."""
    rng = np.random.default_rng(5)
    prompts = []
    for length in rng.integers(1, longest, count):
        ids = rng.integers(3, VOCAB_SIZE, length)
        chosen = np.flatnonzero(rng.random(length) < 0.6)
        chosen = chosen if len(chosen) else np.array([0])
        ids[chosen] = VOCAB_SIZE + np.arange(len(chosen))
        rows = rng.integers(0, 256, (len(chosen), SIZE)).astype(np.uint8)
        prompts.append({"prompt_token_ids": ids, "prompt_embeds": rows})
    return prompts


def _tokens(llm: LLM, prompts: Any) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, GREEDY)]


def test_the_port_has_bytes(engine_dir: Path) -> None:
    (port,) = read_engine(engine_dir).manifest.module.inputs
    assert str(port) == f"{TOKEN_ROWS} {UINT8} [num_token_rows, {SIZE}]"


@pytest.mark.parametrize("max_tokens", [None, 160])
def test_bytes_are_the_embeddings_that_are_made_of_them(
    engine_dir: Path, model_dir: Path, reference: PreTrainedModel, max_tokens: int | None
) -> None:
    """Prompts are computed in chunks, beside others; with few blocks of cache they are preempted."""
    prompts, hidden = _prompts(10, 90), reference.config.hidden_size
    made = [one | {"prompt_embeds": embeddings_of(one["prompt_embeds"], hidden)} for one in prompts]
    cache = KvCacheConfig(tokens_per_block=16)
    with LLM(model_dir, enable_prompt_embeds=True, kv_cache_config=cache, **LIMITS) as plain:
        expected = _tokens(plain, made)
    scheduler = SchedulerConfig(capacity_scheduler_policy="MAX_UTILIZATION")
    with LLM(engine_dir, kv_cache_config=replace(cache, max_tokens=max_tokens), scheduler_config=scheduler) as llm:
        assert _tokens(llm, prompts) == expected


def test_prefixes_are_told_apart_by_their_bytes(bytes_llm: LLM) -> None:
    rows = np.random.default_rng(6).integers(0, 256, (50, SIZE)).astype(np.uint8)
    other = rows.copy()
    other[20, 3] ^= 1  # in the second block
    given = [bytes_llm.generate({"prompt_embeds": one}, GREEDY) for one in (rows, rows, other)]
    assert [output.metrics.num_cached_tokens for output in given] == [0, 48, 16]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((2, SIZE), np.float32), "prompt_embeds has rows of floats: expected uint8, which this engine takes"),
        (np.zeros((2, SIZE + 1), np.uint8), f"rows of {SIZE + 1} elements: expected the engine's size of rows, {SIZE}"),
        (np.zeros((2, SIZE), np.int8), "prompt_embeds has shape .* and dtype int8: expected floats"),
    ],
)
def test_other_rows_are_refused(bytes_llm: LLM, rows: np.ndarray, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        bytes_llm.generate({"prompt_embeds": rows}, GREEDY)


def test_engines_of_embeddings_take_no_bytes(model_dir: Path) -> None:
    rows = np.zeros((2, SIZE), np.uint8)
    refused = pytest.raises(ArgumentError, match="prompt_embeds has rows of uint8: expected floats")
    with LLM(model_dir, enable_prompt_embeds=True, **LIMITS) as llm, refused:
        llm.generate({"prompt_embeds": rows}, GREEDY)


def test_kernels_of_gpus_read_vectors_of_bytes(model_dir: Path, tmp_path: Path) -> None:
    convert_checkpoint(str(model_dir), tmp_path / "checkpoint", "bfloat16")
    with pytest.raises(BuildError, match=f"have {SIZE} elements, and the GPU kernels move 8 at a time"):
        _build(tmp_path / "checkpoint", tmp_path / "engine", target="sm_90")
