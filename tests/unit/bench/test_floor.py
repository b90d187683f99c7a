"""The bytes that one decode step must read, for engines of both targets, and the operations of a prompt."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.builder.cuda_engines import cuda_plan, cuda_shape
from tests.unit.engine.samples import MANIFEST
from trtllm_lite.bench.floor import (
    Ceilings,
    kv_bytes_per_step,
    latency_floors,
    prompt_flops,
    start_up_floor,
    weight_bytes_per_step,
)
from trtllm_lite.bench.latency_shape import LatencyShape
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.engine.reader import EngineFile, StoredTensor
from trtllm_lite.errors import ArgumentError
from trtllm_lite.network.config import ModelConfig


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_on_a_gpu_reads_all_weights_but_a_table_that_it_looks_up(tied: bool) -> None:
    shape = cuda_shape(tied=tied)
    plan = cuda_plan(shape)
    sizes = {tensor.name: tensor.max_bytes(plan.symbols) for tensor in plan.tensors if tensor.kind == "weight"}
    table = shape.vocab * shape.hidden * 2
    assert table in sizes.values()
    engine = EngineFile(Path(), 0, {}, {}, None, plan)  # type: ignore[arg-type] - the manifest has no part in it
    assert weight_bytes_per_step(engine) == sum(sizes.values()) - (0 if tied else table)


def _llama_8b() -> Manifest:
    model = ModelConfig(
        producer="test",
        architecture="LlamaForCausalLM",
        family="llama",
        dtype="bfloat16",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=131072,
        eos_token_ids=[],
        bos_token_id=None,
        pad_token_id=None,
    )
    return replace(MANIFEST, model=model)


def test_operations_of_a_prompt_are_those_of_a_known_model() -> None:
    # Llama-3.1-8B: 8.030 billion parameters, of which the embedding table (0.525) is looked up, not multiplied.
    one, many = prompt_flops(_llama_8b().model, 1), prompt_flops(_llama_8b().model, 8192)
    assert one / 2 == pytest.approx(8.030e9 - 0.525e9, rel=1e-3)
    # The LM head for the last token alone; attention of half a square: 4 * 32 * 32 * 128 * 8192^2 / 2 = 17.6e12.
    assert many == pytest.approx(2 * 6.979e9 * 8192 + 17.6e12 + 1.05e9, rel=1e-3)


def test_a_first_token_takes_its_arithmetic_and_no_less_than_reading_the_weights() -> None:
    engine = EngineFile(Path(), 0, {}, {}, MANIFEST, cuda_plan(cuda_shape()))
    shape = LatencyShape(batch_size=3, input_len=20)

    def floor(ceilings: Ceilings) -> float:
        figures = latency_floors(engine, shape, ceilings, first_s=2.0, step_s=1.0)
        assert figures["fraction_of_first_token_floor"] == figures["floor_time_to_first_token_s"] / 2.0
        return float(figures["floor_time_to_first_token_s"])

    assert floor(Ceilings(bandwidth=1e15, flops=1e3)) == 3 * prompt_flops(MANIFEST.model, 20) / 1e3
    assert floor(Ceilings(bandwidth=1e3, flops=1e15)) == weight_bytes_per_step(engine) / 1e3


def test_a_decode_step_reads_the_weights_or_computes_and_reads_the_cache() -> None:
    manifest = _llama_8b()
    engine = EngineFile(Path(), 0, {}, {}, manifest, cuda_plan(cuda_shape()))
    shape = LatencyShape(batch_size=3, input_len=20, output_len=5)
    weights, cache = weight_bytes_per_step(engine), kv_bytes_per_step(engine, shape)
    assert cache == round(3 * 22.5 * manifest.kv_cache.bytes_per_block / manifest.kv_cache.tokens_per_block)

    def floor(ceilings: Ceilings) -> float:
        figures = latency_floors(engine, shape, ceilings, first_s=2.0, step_s=4.0)
        assert figures["fraction_of_floor"] == figures["floor_inter_token_latency_s"] / 4.0
        return float(figures["floor_inter_token_latency_s"])

    assert floor(Ceilings(bandwidth=1e3)) == pytest.approx((weights + cache) / 1e3)
    assert floor(Ceilings(bandwidth=1e3, flops=1e15)) == pytest.approx((weights + cache) / 1e3)
    # The model has 8.030 billion parameters; the embedding table (0.525) is looked up, not multiplied.
    assert floor(Ceilings(bandwidth=1e15, flops=1e12)) == pytest.approx(3 * 2 * (8.030e-3 - 0.525e-3), rel=1e-3)


@pytest.mark.parametrize("stripped", [False, True])
def test_a_start_up_takes_as_long_as_its_weights_travel(stripped: bool) -> None:
    entries = {
        "plan": StoredTensor("U8", (900,), (0, 900)),
        "weights.a": StoredTensor("BF16", (3, 1000), (1024, 7024)),
        "weights.b": StoredTensor("F32", (1000,), (7040, 11040)),
    }
    engine = EngineFile(Path(), 0, entries, {}, replace(MANIFEST, stripped=stripped), None)  # type: ignore[arg-type]
    found = start_up_floor(engine, Ceilings(host_bandwidth=1000.0), 40.0)
    assert found == ({} if stripped else {"floor_start_up_s": 10.0, "fraction_of_start_up_floor": 0.25})
    assert start_up_floor(engine, Ceilings(bandwidth=1000.0), 40.0) == {}


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_ceiling_is_a_number_above_0(value: float) -> None:
    with pytest.raises(ArgumentError, match=r"flops is .* expected a number above 0"):
        Ceilings(flops=value)
