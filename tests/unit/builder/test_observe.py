"""Observers in GPU engines show the operands of products and the stored keys and values of the standard network."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from tests.tolerances import ROUNDED_TOLERANCES, assert_close
from tests.unit.builder.cuda_engines import CUDA_VARIANTS, LIMITS, cuda_shape, save_cuda_engine
from tests.unit.builder.cuda_interpreter import CudaInterpreter
from tests.unit.builder.interpreter import run
from tests.unit.builder.networks import Shape, network
from tests.unit.builder.scenario import Sequences
from trtllm_lite.builder.cache_groups import assign_cache_groups
from trtllm_lite.builder.cuda.planning import Lowered, lower_network
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.observe import MAGNITUDES, ROWS, observe
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.common.vocabulary import DECODER
from trtllm_lite.quantize.kv_cache import find_attentions, keys_and_values
from trtllm_lite.quantize.products import by_input, find_products, observed_input

DTYPES = {ir.DataType.BFLOAT16: "bfloat16", ir.DataType.FLOAT16: "float16"}
LENS = [9, 1, 4]


def observing(shape: Shape) -> Lowered:
    """The programs of an engine that observes the inputs of all products, and the keys and values of all attentions."""
    source = network(shape)
    inputs = {name: observed_input(group) for name, group in by_input(find_products(source.graph)).items()}
    inputs |= keys_and_values(find_attentions(source.graph))
    model, _ = run_passes(source)
    bounds = BuildLimits(**LIMITS, gather_context_logits=True)
    bounds = replace(bounds, cache_groups=assign_cache_groups(model.graph, bounds.max_seq_len))
    names = {str(node.name) for node in network(shape).graph}
    observe(model.graph, {name: observed.paths for name, observed in inputs.items()}, names)
    return lower_network(model.graph, DECODER, DTYPES[shape.dtype], bounds, parse_targets(["sm_90"]))


@pytest.mark.parametrize("merged", ["attention.q_proj", "mlp.gate_proj"])
def test_one_input_of_a_block_is_observed_alone(merged: str) -> None:
    """The other product of the block keeps its own name; it is not the one that merges several."""
    source = network(cuda_shape(inter=160))
    groups = by_input(find_products(source.graph))
    name, names = f"layers.1.{merged}", {str(node.name) for node in source.graph}
    model, _ = run_passes(source)
    observe(model.graph, {name: observed_input(groups[name]).paths}, names)
    shown = {str(value.name): value.shape[-1] for value in model.graph.outputs if value.shape is not None}
    assert shown[f"{ROWS}{name}"] == cuda_shape().hidden
    assert shown[f"{MAGNITUDES}{name}"] == cuda_shape().hidden


def multiplied_and_stored(shape: Shape, state: Sequences, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The standard network's inputs of products and appended keys and values, packed, by observed name."""
    source = network(shape)
    products = {name: group[0].x for name, group in by_input(find_products(source.graph)).items()}
    attentions = {attention.name: attention.appended for attention in find_attentions(source.graph)}
    wanted = [*products.values(), *(value for pair in attentions.values() for value in pair)]
    source.graph.outputs.extend(dict.fromkeys(wanted))
    padded = {name: feeds[f"{name}.padded"] for name in ("position_ids", "past_lens")}
    outputs = run(source, feeds | state.caches | padded)

    def packed(value: ir.Value) -> np.ndarray:
        found = outputs[str(value.name)]
        found = found.transpose(0, 2, 1, 3) if found.ndim == 4 else found  # positions before heads
        return found.reshape(np.prod(found.shape[:2]), -1)[feeds["packed_rows"]]

    stored = {name: np.concatenate([packed(value) for value in pair], axis=1) for name, pair in attentions.items()}
    return {name: packed(x) for name, x in products.items()} | stored


@pytest.mark.parametrize("variant", CUDA_VARIANTS)
def test_observers_show_what_the_network_computes(variant: str) -> None:
    shape = CUDA_VARIANTS[variant]
    lowered = observing(shape)
    assert [program.name for program in lowered.programs] == ["mixed"]
    card = CudaInterpreter(lowered)
    symbols = card.plan.symbols
    groups = symbols["num_tables"] // symbols["num_seqs"]
    tables = {"tokens_per_block": LIMITS["tokens_per_block"], "num_blocks": symbols["num_blocks"], "num_groups": groups}
    state = Sequences(shape, num_seqs=3, **tables)
    feeds = state.feeds(LENS)
    none = np.full(sum(LENS), -1, np.int32)
    step = feeds | {name: feeds[f"{name}.packed"] for name in ("position_ids", "past_lens")}
    step |= {"logits_indices": np.arange(sum(LENS), dtype=np.int32), "token_slots": none, "sample_slots": none}
    card.step(step, "mixed")
    expected = multiplied_and_stored(shape, state, feeds)
    assert {name.removeprefix(ROWS) for name in card.plan.outputs if name.startswith(ROWS)} == set(expected)
    for name, rows in expected.items():
        shown = card.output(f"{ROWS}{name}").astype(np.float32)
        assert_close(shown, rows, card.dtype, name, ROUNDED_TOLERANCES)
        largest, sums = card.output(f"{MAGNITUDES}{name}")
        assert np.array_equal(largest, np.abs(shown).max(0))
        np.testing.assert_allclose(sums, np.abs(shown).sum(0), rtol=1e-6)


def test_the_runtime_accepts_an_engine_with_observers(tmp_path: Path) -> None:
    observed = {"qkv": ["layers.0.attention.q_proj"], "mlp": ["layers.1.mlp.down_proj"]}
    engine = save_cuda_engine(tmp_path, observed=observed)
    shown = {f"{prefix}{name}" for prefix in (ROWS, MAGNITUDES) for name in observed}
    assert shown < set(engine.plan.outputs)
