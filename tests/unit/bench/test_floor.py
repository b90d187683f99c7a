"""The bytes that one decode step must read, for engines of both targets, and the operations of a prompt."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.builder.cuda_engines import cuda_plan, cuda_shape, lowered_stages
from tests.unit.engine.samples import MANIFEST, caches
from trtllm_lite.bench.floor import (
    Ceilings,
    kv_bytes_per_step,
    latency_floors,
    serving_floor,
    start_up_floor,
    weight_bytes_per_step,
)
from trtllm_lite.bench.latency_shape import LatencyShape
from trtllm_lite.bench.operations import prompt_flops, step_flops
from trtllm_lite.bench.workload import PlannedRequest
from trtllm_lite.builder.cuda.planning import make_plan
from trtllm_lite.engine.manifest import CacheGroup, KvCache, Manifest, RankMapping, Target
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
    engine = EngineFile(Path(), 0, {}, {}, MANIFEST, plan)
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
    # The LM head runs for the last token alone; causal attention: 4 * 32 * 32 * 128 * 8192^2 / 2 = 17.6e12.
    assert many == pytest.approx(2 * 6.979e9 * 8192 + 17.6e12 + 1.05e9, rel=1e-3)


def test_a_first_token_takes_its_arithmetic_and_no_less_than_reading_the_weights() -> None:
    engine = EngineFile(Path(), 0, {}, {}, MANIFEST, cuda_plan(cuda_shape()))
    shape = LatencyShape(batch_size=3, input_len=20)

    def floor(ceilings: Ceilings) -> float:
        figures = latency_floors([engine], shape, ceilings, first_s=2.0, step_s=1.0)
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
        figures = latency_floors([engine], shape, ceilings, first_s=2.0, step_s=4.0)
        assert figures["fraction_of_floor"] == figures["floor_inter_token_latency_s"] / 4.0
        return float(figures["floor_inter_token_latency_s"])

    assert floor(Ceilings(bandwidth=1e3)) == pytest.approx((weights + cache) / 1e3)
    assert floor(Ceilings(bandwidth=1e3, flops=1e15)) == pytest.approx((weights + cache) / 1e3)
    # The model has 8.030 billion parameters; the embedding table (0.525) is looked up, not multiplied.
    assert floor(Ceilings(bandwidth=1e15, flops=1e12)) == pytest.approx(3 * 2 * (8.030e-3 - 0.525e-3), rel=1e-3)


def _stages(kind: str) -> list[EngineFile]:
    """A whole engine, and one for each of its two stages."""
    shape = cuda_shape(tied=False)

    def cache_of(layers: range) -> KvCache:
        groups = (CacheGroup("full", "full", 0, caches((2, 16), "bfloat16", layers)),)
        return KvCache(16, 64, len(layers) * 2048, groups)

    cache = cache_of(range(shape.layers))
    manifest = replace(_llama_8b(), target=Target(kind), kv_cache=cache)
    manifest = replace(manifest, model=replace(manifest.model, num_hidden_layers=shape.layers))
    found = [EngineFile(Path(), 0, {}, {}, manifest, cuda_plan(shape))]
    for rank, lowered in enumerate(lowered_stages(shape, pp_size=2)):
        names = {specialised: f"{number:064x}" for specialised, number in lowered.kernels().items()}
        own = cache_of(range(rank, rank + 1))
        stage = replace(manifest, kv_cache=own, mapping=RankMapping(rank=rank, pp_size=2))
        found.append(EngineFile(Path(), 0, {}, {}, stage, make_plan(lowered, names)))
    return found


def _latency(stages: list[EngineFile], shape: LatencyShape, **ceilings: float) -> tuple[float, float]:
    """The floors of the time to the first token (0.0 if there is none) and of the inter-token latency."""
    figures = latency_floors(stages, shape, Ceilings(**ceilings), first_s=1.0, step_s=1.0)
    return figures.get("floor_time_to_first_token_s", 0.0), figures["floor_inter_token_latency_s"]


def test_one_request_passes_all_stages_of_a_pipeline() -> None:
    whole, *stages = _stages("cuda")
    alone = LatencyShape(batch_size=1, input_len=20, output_len=5)
    rows, frequencies = 2 * 64, 4 * 16 // 2  # bytes sent as 16-bit values; bytes of rotary frequencies in both stages
    for limits in ({"bandwidth": 1e3}, {"bandwidth": 1e6, "flops": 1e3}):
        (first, step), (staged_first, staged_step) = (_latency(one, alone, **limits) for one in ([whole], stages))
        assert staged_step == pytest.approx(step + (rows + frequencies) / limits["bandwidth"])
        assert staged_first == pytest.approx(first)


def test_many_requests_wait_for_the_slowest_stage() -> None:
    """The second stage has the LM head, and so nearly all arithmetic."""
    whole, *stages = _stages("cuda")
    many = LatencyShape(batch_size=4, input_len=16, output_len=5)
    last = 2 * (4096 * 128256 + (32 + 8) * 2 * 4096 * 128 + 3 * 4096 * 14336)  # FLOPs of a token in the last stage
    _, step = _latency(stages, many, bandwidth=1e15, flops=1e9)
    assert step == pytest.approx(4 * last / 1e9, rel=1e-6)
    slowest = weight_bytes_per_step(stages[1]) + kv_bytes_per_step(stages[1], many) / 2
    assert _latency(stages, many, bandwidth=1e3)[1] == pytest.approx(2 * slowest / 1e3)
    # Four prompts take four steps: the first stage computes one prompt, then the last stage computes four.
    model = whole.manifest.model
    of_last = prompt_flops(replace(model, num_hidden_layers=1), 16)
    expected = prompt_flops(model, 16) - of_last + 4 * of_last
    assert _latency(stages, many, bandwidth=1e15, flops=1e3)[0] == pytest.approx(expected / 1e3)


def test_stages_on_cpus_read_the_same_memory() -> None:
    whole, *stages = _stages("cpu")
    many = LatencyShape(batch_size=4, input_len=16, output_len=5)
    staged, one = (_latency(engines, many, bandwidth=1e6, flops=1e9) for engines in (stages, [whole]))
    assert staged == pytest.approx(one, rel=1e-3)


def test_a_load_keeps_all_stages_busy() -> None:
    _, *stages = _stages("cuda")
    requests = [PlannedRequest(0.0, np.zeros(8, np.int32), 11) for _ in range(6)]
    limits = Ceilings(bandwidth=1e3, flops=1e15)
    # Four requests run at a time, two in each of the two stages: a step generates two tokens.
    steps, attended = 2 * 6 * 10 / 4, 6 * 10 * (8 + 5.5)
    last = steps * weight_bytes_per_step(stages[1]) + attended * 2048 / 16
    assert serving_floor(stages, requests, 4, limits, 1.0)["fraction_of_ceiling"] == pytest.approx(last / 1e3)


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
    with pytest.raises(ArgumentError, match=r"flops is .* expected a finite number above 0"):
        Ceilings(flops=value)


def test_a_step_has_the_operations_of_its_products_and_of_its_attention() -> None:
    whole, *stages = _stages("cpu")
    shape = LatencyShape(batch_size=3, input_len=20, output_len=5)
    model = whole.manifest.model
    # For a prompt of one token, prompt_flops() counts attention to half a token, the mean of causal attention. A row of
    # a decode step attends to its whole context instead.
    attention = 4 * model.num_hidden_layers * model.num_attention_heads * model.head_dim
    expected = 3 * (prompt_flops(model, 1) - attention / 2 + attention * (20 + 5 / 2))
    assert step_flops(whole, shape) == pytest.approx(expected)
    assert sum(step_flops(stage, shape) for stage in stages) == pytest.approx(expected)
    figures = latency_floors(stages, shape, Ceilings(flops=2e12), first_s=1.0, step_s=1.0)
    assert figures["step_operations"] == pytest.approx(expected)
    assert figures["prompts_operations"] == pytest.approx(3 * prompt_flops(model, 20))
    assert figures["peak_operations_per_s"] == 2e12
    assert "step_operations" not in latency_floors(_stages("cuda")[1:], shape, Ceilings(), first_s=1.0, step_s=1.0)
