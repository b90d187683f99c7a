"""The bytes that a decode step of a mixture of experts is expected to read, and its operations."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.builder.cuda_engines import lowered_model
from tests.unit.builder.test_cuda_experts import EXTENTS, network_of
from tests.unit.engine.samples import MANIFEST
from trtllm_lite.bench.floor import weight_bytes_per_step
from trtllm_lite.bench.mixtures import mixtures, share_of_experts
from trtllm_lite.builder.cuda.planning import make_plan
from trtllm_lite.engine.manifest import RankMapping
from trtllm_lite.engine.reader import EngineFile


def _engine(directory: Path, **mapping: int) -> EngineFile:
    lowered = lowered_model(network_of("qwen3_moe", directory), "bfloat16")
    names = {specialised: f"{number:064x}" for specialised, number in lowered.kernels().items()}
    manifest = replace(MANIFEST, mapping=RankMapping(**mapping))
    return EngineFile(Path(), 0, {}, {}, manifest, make_plan(lowered, names))


def test_two_rows_choose_half_of_four_experts_and_half_of_the_rest() -> None:
    assert share_of_experts(4, 2, 1) == 0.5
    assert share_of_experts(4, 2, 2) == 0.75


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


def test_a_rank_has_a_part_of_the_experts(tmp_path: Path) -> None:
    whole = mixtures(_engine(tmp_path))[0]
    part = mixtures(_engine(tmp_path / "ranks", tp_size=2, moe_ep_size=2))[0]
    assert (part.num_experts, part.top_k) == (2 * whole.num_experts, whole.top_k)
