"""Choices of routers are counted: as transformers chooses, on every rank and stage, and for benchmark reports."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from tests.e2e.test_expert_parallel import EXPERTS
from tests.e2e.test_tensor_parallel import LIMITS, checkpoint_of, opened, two_steps
from tests.models import VOCAB_SIZE, save_tiny_model
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.bench.floor import weight_bytes_per_step
from trtllm_lite.builder import build_engine
from trtllm_lite.builder.checkpoint import Checkpoint
from trtllm_lite.cli import cli
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.session.experts import ExpertCounts, expert_counts

TOP_K, LAYERS = 2, 3


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    directory = tmp_path_factory.mktemp("mixtral")
    shape = {"num_local_experts": EXPERTS, "num_experts_per_tok": TOP_K, "num_key_value_heads": 6}
    return checkpoint_of("mixtral", directory, **shape)


def _counts(checkpoint: Checkpoint, directory: Path, **mapping: int) -> tuple[Any, list[ExpertCounts]]:
    """An executor, and its routers' choices in two steps of 27 and 24 tokens."""
    build_engine(checkpoint, directory, **mapping, **LIMITS)
    executor = opened(directory)
    two_steps(executor)
    return executor, expert_counts(executor)


def test_the_choices_of_a_prompt_are_those_of_transformers(tmp_path: Path) -> None:
    model = save_tiny_model("mixtral", tmp_path / "model", num_local_experts=EXPERTS)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "float32")
    # In the last layer only rows whose logits are wanted are routed: all rows of a prompt with prompt logits.
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", gather_context_logits=True, **LIMITS)
    prompt = np.random.default_rng(0).integers(0, VOCAB_SIZE, 23).tolist()
    with torch.no_grad():
        routers = model(torch.tensor([prompt]), output_router_logits=True).router_logits
    runner = ModelRunner.from_dir(tmp_path / "engine")
    assert all(layer.steps == 0 and not layer.choices.any() for layer in runner.expert_counts())
    runner.generate([prompt], max_new_tokens=1, return_dict=True, output_context_logits=True)
    counts = runner.expert_counts()
    assert len(counts) == len(routers) == LAYERS
    for layer, logits in zip(counts, routers, strict=True):
        chosen = logits.topk(model.config.num_experts_per_tok).indices.flatten().numpy()
        np.testing.assert_array_equal(layer.choices, np.bincount(chosen, minlength=EXPERTS))
        assert (layer.experts_read, layer.steps) == ((len(set(chosen)),), 1)
        assert layer.busiest_choices == len(chosen)


@pytest.mark.parametrize(("tp_size", "groups"), [(2, 1), (3, 3), (6, 3)])
def test_ranks_count_what_one_rank_counts(checkpoint: Checkpoint, tp_size: int, groups: int, tmp_path: Path) -> None:
    _, one = _counts(checkpoint, tmp_path / "one")
    executor, many = _counts(checkpoint, tmp_path / "many", tp_size=tp_size, moe_ep_size=groups)
    assert len(many) == len(one) == LAYERS
    for whole, shared in zip(one, many, strict=True):
        np.testing.assert_array_equal(shared.choices, whole.choices)
        last = whole is one[-1]
        assert shared.choices.sum() == (3 + 3 if last else 27 + 24) * TOP_K
        assert len(shared.experts_read) == groups
        assert sum(shared.experts_read) == whole.experts_read[0]
        assert (shared.steps, whole.steps) == (2, 2)
    before = expert_counts(executor)
    two_steps(executor)  # the same two steps double all counts
    for first, after in zip(before, expert_counts(executor), strict=True):
        np.testing.assert_array_equal(after.since(first).choices, first.choices)
        assert after.busiest_choices == 2 * first.busiest_choices
        largest = int(first.choices_by_rank.max())
        assert largest <= first.busiest_choices <= first.choices.sum()


def test_stages_count_their_layers(checkpoint: Checkpoint, tmp_path: Path) -> None:
    limits, mapping = {"max_batch_size": 4, "max_seq_len": 64}, {"pp_size": 3, "tp_size": 2, "moe_ep_size": 2}
    build_engine(checkpoint, tmp_path / "one", **LIMITS)
    build_engine(checkpoint, tmp_path / "many", **mapping, **LIMITS)
    found = []
    for name, options in (("one", {}), ("many", {"pipeline_parallel_size": 3, "tensor_parallel_size": 2})):
        with LLM(tmp_path / name, **limits, **options) as llm:
            llm.generate([[5, 6, 7, 8]], SamplingParams(max_tokens=3, temperature=0.0), use_tqdm=False)
            found.append([layer.choices.tolist() for layer in llm.expert_counts()])
    assert found[0] == found[1]
    assert len(found[0]) == LAYERS


def _bench(engine: Path, command: str, path: Path, *options: Any) -> dict[str, Any]:
    asked = ["bench", command, "--engine_dir", str(engine), "--num_threads", "1", "--json", str(path)]
    result = CliRunner().invoke(cli, [*asked, *map(str, options)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (report,) = json.loads(path.read_text())
    return report["figures"]


def test_reports_have_floors_of_the_experts_that_were_read(checkpoint: Checkpoint, tmp_path: Path) -> None:
    build_engine(checkpoint, tmp_path / "one", **LIMITS)
    build_engine(checkpoint, tmp_path / "many", tp_size=3, moe_ep_size=3, **LIMITS)
    one, many = tmp_path / "one", tmp_path / "many"
    shape = ("--batch_size", 2, "--input_len", 8, "--output_len", 9, "--repeats", 1, "--memory_bandwidth", 4)
    figures = _bench(one, "latency", tmp_path / "l.json", *shape)
    read = figures["experts_read"]
    assert TOP_K / 2 < read < 3 * TOP_K
    engine = read_engine(one)
    assert figures["weight_bytes_per_step"] == weight_bytes_per_step(engine, 2, read / EXPERTS)
    everything, nothing = (weight_bytes_per_step(engine, share_read=share) for share in (1.0, 0.0))
    expected = nothing + (everything - nothing) * read / EXPERTS
    assert figures["weight_bytes_per_step"] == pytest.approx(expected, abs=1)
    assert "rank_imbalance" not in figures
    ranks = _bench(many, "latency", tmp_path / "r.json", *shape)
    # The count is about 2 * TOP_K / 3, or less if on a busy machine one request ends before the other comes.
    assert TOP_K / 3 - 1e-9 <= ranks["rank_rows"] < TOP_K
    assert ranks["rank_rows"] <= ranks["busiest_rank_rows"] < 3 * TOP_K
    assert ranks["rank_imbalance"] == pytest.approx(ranks["busiest_rank_rows"] / ranks["rank_rows"])
    workload = ("--num_requests", 3, "--input_len", 8, "--output_len", 4, "--skip_tokenizer_init")
    served = _bench(many, "throughput", tmp_path / "t.json", *workload)
    assert 0 < served["experts_read"] <= EXPERTS / 3
    assert served["rank_imbalance"] >= 1
