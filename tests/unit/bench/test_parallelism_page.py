"""The formulas of docs/design/parallelism.md agree with what engines need."""

import json
import sys
from pathlib import Path

import pytest

from trtllm_lite.builder import checkpoint_of_shape, plan_memory
from trtllm_lite.convert import open_model_config
from trtllm_lite.network.config import ModelConfig

ROOT = Path(__file__).resolve().parents[3]
SHAPE = ROOT / "configs" / "models" / "llama-3.1-8b.json"
# A link without latency that sends a byte a second.
BYTES = {"seconds": 0.0, "seconds_per_feature": 0.0, "bytes_per_s": 1.0}


@pytest.fixture(autouse=True)
def scripts_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "scripts")])


@pytest.fixture
def llama_8b() -> ModelConfig:
    return open_model_config(SHAPE).config


@pytest.mark.parametrize("tp_size", [2, 16])  # 8 key/value heads are split, or repeated
def test_the_bytes_of_a_rank_are_those_that_plan_says(tp_size: int) -> None:
    from documents.collectives import Fit, Link
    from documents.parallelism.model import cache_bytes, num_all_reduces, step_bytes, table_bytes

    shape = open_model_config(SHAPE)
    model, checkpoint = shape.config, checkpoint_of_shape(shape.config, shape.network)
    plan = plan_memory(checkpoint, target="sm_90", tp_size=tp_size, max_batch_size=1, max_seq_len=1024)
    weights = step_bytes(model, tp_size) + table_bytes(model, tp_size)
    assert weights == pytest.approx(plan.weights, rel=2e-3)  # vocabularies are padded
    assert cache_bytes(model, tp_size) * 1024 == plan.cache_use.num_bytes
    link = Link(Fit(**BYTES), Fit(**BYTES))
    sent = num_all_reduces(model) * link.all_reduce(1, model.hidden_size, tp_size)
    assert sent == plan.link_bytes["all_reduce"]
    gathered = link.all_gather(1, model.vocab_size, tp_size, 0.0)
    assert gathered == pytest.approx(plan.link_bytes["all_gather"], rel=1e-2)


def test_norms_of_many_rows_are_written_in_shares() -> None:
    from documents.collectives import Fit, Link

    link, rows = Link(Fit(**BYTES | {"seconds": 1e9}), Fit(**BYTES)), 1000
    assert link.all_reduce(rows, 8, 1) == 0
    assert link.all_reduce(rows, 8, 2) == 2 * rows * 8 / 2
    assert link.all_reduce(rows, 8, 4) == pytest.approx(2 * rows * 8 * 3 / 4)


def test_logits_take_what_the_product_before_does_not_hide() -> None:
    from documents.collectives import Fit, Link

    link, sent = Link(Fit(**BYTES), Fit(**BYTES | {"seconds": 6.0})), 4 * 10 * 64 * 3 / 4
    assert link.all_gather(10, 64, 4, sent - 5) == pytest.approx(3 + 5)
    assert link.all_gather(10, 64, 4, sent + 5) == pytest.approx(3)
    assert link.all_gather(10, 64, 1, 0.0) == 0


def test_floors_are_those_of_the_measured_engines(llama_8b: ModelConfig) -> None:
    from documents.parallelism.checks import context_of, fit_machine, rank_reports
    from documents.parallelism.model import decode_step

    for ranks, kinds in rank_reports().items():
        for report in kinds["latency"]:
            rows, context = report["shape"]["batch_size"], context_of(report["shape"])
            step = decode_step(llama_8b, fit_machine(), rows, context, ranks)
            floor = report["figures"]["floor_inter_token_latency_s"]
            assert step.weights + step.cache == pytest.approx(floor, rel=1e-3)


def test_a_fit_finds_the_numbers_that_times_were_made_of(tmp_path: Path) -> None:
    from documents.collectives import Fit, fit_link, record_collectives

    push, stored_rows = Fit(2e-6, 3e-10, 4e11), Fit(7e-6, 0.0, 3e11)
    times = [
        {"hidden": hidden, "rows": rows, "way": way, "microseconds": fit.time(hidden, share * hidden * rows) * 1e6}
        for hidden in (1024, 4096)
        for way, fit, share, counts in (("push", push, 2, (1, 64, 256)), ("stored", stored_rows, 1, (1024, 8192)))
        for rows in counts
    ]
    report, stored = tmp_path / "report.json", tmp_path / "stored.json"
    report.write_text(json.dumps({"ranks": 2, "times": times}))
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"library": "NCCL", "times": []}))
    record_collectives(stored, [report, other], "abc")
    link = fit_link(stored)
    for found, expected in ((link.push, push), (link.stored, stored_rows)):
        assert vars(found) == pytest.approx(vars(expected), rel=1e-6)
    assert {name: kept.get("commit") for name, kept in json.loads(stored.read_text()).items()} == {
        "trtllm_lite": "abc",
        "NCCL": None,
    }


def test_a_pipeline_is_as_fast_as_replicas_if_boundaries_cost_nothing(llama_8b: ModelConfig) -> None:
    from documents.parallelism.checks import fit_machine
    from documents.parallelism.model import Layout, token_time

    def times(layout: Layout, requests: int) -> float:
        return token_time(llama_8b, fit_machine(), layout, requests, 100, network=1e30)

    assert times(Layout(pp_size=4), 64) == pytest.approx(times(Layout(replicas=4), 64))
    assert times(Layout(pp_size=4), 1) == pytest.approx(times(Layout(), 1))
    assert times(Layout(pp_size=4), 64) < times(Layout(), 64)


def test_each_card_holds_its_part(llama_8b: ModelConfig) -> None:
    from documents.parallelism.model import Layout, fits

    def least(memory: float, requests: int) -> list[str]:
        layouts = [Layout(), Layout(2), Layout(1, 2), Layout(16)]
        return [str(layout) for layout in layouts if fits(llama_8b, memory, layout, requests, 1000)]

    assert least(18e9, 0) == ["one card", "TP 2", "PP 2", "TP 16"]
    assert least(10e9, 0) == ["TP 2", "PP 2", "TP 16"]  # 16.1 GB of weights
    assert least(8e9, 0) == ["TP 16"]
    assert least(18e9, 900) == ["TP 16"]  # each holds one of the 8 KV heads: 15 of 118 GB


def test_the_rules_of_the_page_follow_from_its_model(llama_8b: ModelConfig) -> None:
    from documents.parallelism.cards import machines
    from documents.parallelism.model import Layout, token_time

    layouts = (Layout(8), Layout(2, 1, 4), Layout(1, 1, 8))
    for machine in machines().values():
        for requests, best in ((1, "TP 8"), (4096, "8 × one card")):
            times = {str(layout): token_time(llama_8b, machine, layout, requests, 2048) for layout in layouts}
            assert min(times, key=times.__getitem__) == best
