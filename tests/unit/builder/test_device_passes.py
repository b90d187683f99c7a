"""The passes for GPUs produce the right operators with the right operands."""

from pathlib import Path

import pytest

from tests.unit.builder.cuda_engines import LIMITS, cuda_shape
from tests.unit.builder.networks import Shape, network
from tests.unit.builder.test_shared_experts import network_of
from trtllm_lite.builder.cuda.limits import Bucket, decode_buckets, step_buckets
from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind, ops_of
from trtllm_lite.builder.cuda.passes import run_device_passes
from trtllm_lite.builder.graph import dims
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.engine.manifest import CacheGroup
from trtllm_lite.plugins.launch import Device

H200 = Device("sm_90a", 227 * 1024)
DECODE = decode_buckets(BuildLimits(**LIMITS))[0]
MIXED = step_buckets(64)[-1]


def _ops(bucket: Bucket, limits: BuildLimits | None = None, **changes: object) -> list[Op]:
    shape: Shape = cuda_shape(**changes)
    model, _ = run_passes(network(shape))
    return run_device_passes(ops_of(model.graph), ProgramKind(H200, bucket, limits or BuildLimits(**LIMITS)))


def _kinds(ops: list[Op]) -> dict[str, int]:
    return {kind: sum(op.kind == kind for op in ops) for kind in sorted({op.kind for op in ops})}


def test_a_decode_step_has_five_operators_a_layer_at_most() -> None:
    first, *ops, last = _ops(DECODE)
    assert (first.kind, last.kind) == ("CacheSlots", "Sample")
    assert _kinds(ops) == {"Embedding": 1, "GatedLinear": 2, "Linear": 5, "PagedAttention": 2, "RotaryTable": 1}
    for op in ops:
        if op.kind == "PagedAttention":
            assert {"x", "weight", "x_norm"} <= op.inputs.keys()
            assert "qkv" not in op.inputs
        if op.kind == "GatedLinear":
            assert "x_norm" in op.inputs
            assert op.attributes["x_norm_epsilon"] == pytest.approx(1e-5)
    assert sum("residual" in op.inputs for op in ops) == 4


def test_several_ranks_read_the_last_tokens_where_one_draws_them() -> None:
    ops = _ops(DECODE, BuildLimits(**LIMITS, tp_size=2))
    readers = [op for op in ops if "last_tokens" in op.inputs and op.kind != "Sample"]
    assert [op.kind for op in readers] == ["CacheSlots", "Embedding"]
    assert all(op.inputs["ranks"].name == "ranks" for op in readers)
    assert not any("ranks" in op.inputs for op in _ops(DECODE))


@pytest.mark.parametrize("bucket", [DECODE, MIXED], ids=lambda bucket: bucket.name)
def test_attention_reads_what_the_search_for_slots_has_left(bucket: Bucket) -> None:
    groups = (CacheGroup("window_5", "window", 5, ()), CacheGroup("full", "full", 0, ()))
    first, *ops = _ops(bucket, BuildLimits(**LIMITS, cache_groups=groups), windows=(5, 0))
    assert first.kind == "CacheSlots"
    assert first.attributes == {"tokens_per_block": LIMITS["tokens_per_block"]}
    assert dims(first.outputs["slots"]) == (2, "num_tokens")
    attentions = [op for op in ops if op.kind == "PagedAttention"]
    assert len(attentions) == 2
    links = Links([first, *ops])
    for attention in attentions:
        assert attention.inputs["slots"] is first.outputs["slots"]
        assert attention.inputs["past_lens"] is first.outputs["past_lens_out"]
        assert links.storage(attention.inputs["past_lens"]) is first.inputs["past_lens"]
        assert attention.inputs["block_tables"] is first.inputs["block_tables"]


@pytest.mark.parametrize("bucket", [DECODE, MIXED], ids=lambda bucket: bucket.name)
def test_the_drawn_tokens_are_where_the_next_step_finds_them(bucket: Bucket) -> None:
    first, *ops, last = _ops(bucket)
    assert last.kind == "Sample"
    logits = last.inputs["logits"]
    assert logits.is_graph_output()
    assert dims(logits) == ("num_logits", 72)
    (embedding,) = (op for op in ops if op.kind == "Embedding")
    for reader in (first, embedding):
        assert reader.inputs["last_tokens"] is last.inputs["last_tokens"]
        assert reader.inputs["token_slots"] is embedding.inputs["token_slots"]
    assert Links([last]).storage(last.outputs["last_tokens_out"]) is last.inputs["last_tokens"]
    assert last.attributes == {"max_edits": 72}  # limited by the size of the vocabulary
    assert dims(last.inputs["sampling_slots"]) == ("num_slots", 24 + 4 * 72)
    assert dims(last.inputs["token_masks"]) == ("num_seqs", 3)


def test_steps_of_many_rows_keep_norms_and_gather() -> None:
    kinds = _kinds(_ops(MIXED))
    assert kinds["RmsNorm"] == 5
    assert kinds["GatherRows"] >= 1


def _check_order(ops: list[Op]) -> None:
    made = {value for op in ops for value in op.outputs.values()}
    done: set = set()
    for op in ops:
        assert made & set(op.inputs.values()) <= done, f"{op.name} reads what is not computed yet"
        done |= set(op.outputs.values())


def test_every_value_is_made_before_it_is_read() -> None:
    """A product that adds a residual is placed after the operator that makes the residual."""
    for bucket in (DECODE, MIXED):
        for changes in ({}, {"parallel": True, "layer_norm": True}, {"post_norms": True, "mlp": "gelu_tanh"}):
            _check_order(_ops(bucket, **changes))


@pytest.mark.parametrize("bucket", [DECODE, MIXED], ids=lambda bucket: bucket.name)
def test_a_mixture_adds_its_shared_expert_which_adds_the_residual_stream(bucket: Bucket, tmp_path: Path) -> None:
    model, _ = run_passes(network_of("nemotron_h", tmp_path, moe_latent_size=None))
    ops = run_device_passes(ops_of(model.graph), ProgramKind(H200, bucket, BuildLimits(**LIMITS)))
    _check_order(ops)
    links = Links(ops)
    (summed,) = (op for op in ops if op.kind == "GroupedLinear")
    shared = links.producer(summed.inputs["residual"], "Linear")
    assert shared is not None
    assert shared.name == "layers.1.mlp.shared_expert.down_proj"
    assert links.producer(shared.inputs["residual"], "Linear").name == "layers.0.recurrent.o_proj"
    assert "Rowwise" not in _kinds(ops)


def test_a_product_adds_what_a_sigmoid_scales(tmp_path: Path) -> None:
    """The norm after it adds the residual stream, as no product is left that could."""
    model, _ = run_passes(network_of("qwen2_moe", tmp_path))
    ops = run_device_passes(ops_of(model.graph), ProgramKind(H200, MIXED, BuildLimits(**LIMITS)))
    _check_order(ops)
    links = Links(ops)
    for summed in (op for op in ops if op.kind == "GroupedLinear"):
        assert links.producer(summed.inputs["residual"], "SigmoidGate") is not None
        (norm,) = (op for op in links.readers[summed.outputs["y"]])
        assert "residual" in norm.inputs
    assert "Rowwise" not in _kinds(ops)


def test_parallel_products_add_each_other() -> None:
    """Attention and the MLP read the same rows; the residual stream goes into the product that comes first."""
    ops = _ops(DECODE, parallel=True, layer_norm=True)
    assert "Rowwise" not in _kinds(ops)
    assert sum("residual" in op.inputs for op in ops) == 4


def test_head_norms_keep_attention_and_its_product_apart() -> None:
    ops = _ops(DECODE, qk_norm=True, head_dim=32)
    links = Links(ops)
    attentions = [op for op in ops if op.kind == "PagedAttention"]
    assert len(attentions) == 2
    assert all(links.producer(op.inputs["qkv"], "Linear") is not None for op in attentions)
