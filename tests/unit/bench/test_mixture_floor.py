"""The bytes that a decode step of a mixture of experts is expected to read, and its operations."""

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest

from tests.e2e.test_quantized_experts import even
from tests.models import tiny_model
from tests.quantized_writer import write_mxfp4_experts
from tests.unit.builder.cuda_engines import lowered_model
from tests.unit.builder.test_cuda_experts import EXTENTS, network_of
from tests.unit.engine.samples import MANIFEST
from trtllm_lite.bench.floor import weight_bytes_per_step
from trtllm_lite.bench.mixtures import Mixture, mixtures
from trtllm_lite.builder import build_engine
from trtllm_lite.builder.cuda.planning import make_plan
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.manifest import RankMapping
from trtllm_lite.engine.reader import EngineFile, read_engine
from trtllm_lite.network.verifier import load_network
from trtllm_lite.quantize.network import Recipe, quantize_network


def _engine(directory: Path, **mapping: int) -> EngineFile:
    return _engine_of(network_of("qwen3_moe", directory), **mapping)


def _engine_of(network: ir.Model, **mapping: int) -> EngineFile:
    lowered = lowered_model(network, "bfloat16")
    names = {specialised: f"{number:064x}" for specialised, number in lowered.kernels().items()}
    manifest = replace(MANIFEST, mapping=RankMapping(**mapping))
    return EngineFile(Path(), 0, {}, {}, manifest, make_plan(lowered, names))


def test_two_rows_choose_half_of_four_experts_and_half_of_the_rest() -> None:
    assert Mixture(4, 2, 8).share_read(1) == 0.5
    assert Mixture(4, 2, 8).share_read(2) == 0.75


def test_every_step_reads_shared_experts() -> None:
    """Two rows choose half of four experts and half of the rest, and have two more."""
    assert Mixture(6, 4, 8, shared=2).share_read(1) == pytest.approx(4 / 6)
    assert Mixture(6, 4, 8, shared=2).share_read(2) == pytest.approx(5 / 6)


@pytest.mark.parametrize("family", ["qwen2_moe", "deepseek_v2"])
def test_shared_experts_are_found(family: str, tmp_path: Path) -> None:
    """A layer's shared MLP has twice the inner features of an expert."""
    wide = {"shared_expert_intermediate_size": 96} if family == "qwen2_moe" else {"n_shared_experts": 2}
    network = network_of(family, tmp_path, **wide)
    engine = _engine_of(network)
    found = mixtures(engine)
    assert {one.shared for one in found} == {2}
    one = found[0]
    all_experts = len(found) * one.num_experts * 3 * EXTENTS["hidden_size"] * one.inner * 2
    shares = [one.share_read(rows) for rows in (1, 1e6)]
    few, everything = (weight_bytes_per_step(engine, rows) for rows in (1, 1e6))
    assert shares[1] == 1
    assert shares[0] == pytest.approx(one.top_k / one.num_experts)
    assert everything - few == pytest.approx((1 - shares[0]) * all_experts, abs=1)
    build_engine(tmp_path / "checkpoint", tmp_path / "cpu", max_batch_size=2, max_seq_len=32)
    assert mixtures(read_engine(tmp_path / "cpu")) == found


def test_a_step_reads_the_experts_that_its_rows_are_expected_to_choose(tmp_path: Path) -> None:
    engine = _engine(tmp_path)
    (one, *others) = mixtures(engine)
    assert others == [one, one]
    assert one.inner == 48
    all_experts = 3 * one.num_experts * 3 * EXTENTS["hidden_size"] * one.inner * 2  # layers, experts, matrices, bytes
    shares = [1 - (1 - one.top_k / one.num_experts) ** rows for rows in (1, 8)]
    few, many = (weight_bytes_per_step(engine, rows) for rows in (1, 8))
    assert many - few == pytest.approx((shares[1] - shares[0]) * all_experts, abs=1)
    everything = weight_bytes_per_step(engine, 1e6)
    assert everything - few == pytest.approx((1 - shares[0]) * all_experts, abs=1)


def test_experts_in_blocks_are_read_with_their_numbers(tmp_path: Path) -> None:
    """In MXFP4 a block of 32 elements takes 16 bytes, and its scale takes two."""
    sizes = {**EXTENTS, "intermediate_size": 128, "head_dim": 16}
    write_mxfp4_experts(tiny_model("gpt_oss", **sizes), tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    engine = _engine_of(load_network(tmp_path / "checkpoint"))
    one = mixtures(engine)[0]
    rows_of_expert = 2 * one.inner + EXTENTS["hidden_size"]  # rows of an expert's matrices; each row has a bias
    elements = 3 * EXTENTS["hidden_size"] * one.inner
    all_experts = 3 * one.num_experts * (elements * 18 // 32 + rows_of_expert * 4)
    few, everything = (weight_bytes_per_step(engine, rows) for rows in (1, 1e6))
    assert everything - few == pytest.approx((1 - one.top_k / one.num_experts) * all_experts, abs=1)


def test_bytes_and_scales_of_rounded_experts_count(tmp_path: Path) -> None:
    """There are six experts with three matrices [64, 64] in each of two layers."""
    checkpoint = even(tmp_path, moe_intermediate_size=64)
    limits = {"max_batch_size": 2, "max_seq_len": 32}
    stored = {"full_prec": 4 * 64 * 64, "fp8_wo": 64 * 64 + 4 * 64, "int4_wo": 64 * 64 // 2 + 2 * 64 * 64 // 16}
    for qformat, down in stored.items():
        recipe = Recipe(overrides=(("*.experts.down_proj", qformat),), group_size=16)
        network, _ = quantize_network(checkpoint.model, recipe) if qformat != "full_prec" else (checkpoint.model, [])
        build_engine(replace(checkpoint, model=network), tmp_path / qformat, **limits)
        engine = read_engine(tmp_path / qformat)
        one, everything = (weight_bytes_per_step(engine, rows) for rows in (1, 1e6))
        (mixture, _) = mixtures(engine)
        others = 4 * 2 * 64 * 64
        share = 1 - mixture.top_k / mixture.num_experts
        assert everything - one == pytest.approx(share * 2 * 6 * (down + others), abs=1)


def test_a_rank_has_a_part_of_the_experts(tmp_path: Path) -> None:
    whole = mixtures(_engine(tmp_path))[0]
    part = mixtures(_engine(tmp_path / "ranks", tp_size=2, moe_ep_size=2))[0]
    assert (part.num_experts, part.top_k) == (2 * whole.num_experts, whole.top_k)
