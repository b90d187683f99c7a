"""The benchmarks on a real, tiny engine: the counts and files that they produce. Speed is not checked."""

import json
import shutil
from collections import Counter, defaultdict
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.models import FAMILIES, save_tiny_model
from trtllm_lite.bench.floor import kv_bytes_per_step, weight_bytes_per_step
from trtllm_lite.bench.latency import LatencyBench
from trtllm_lite.bench.latency_shape import LatencyShape
from trtllm_lite.bench.serving import Run, serve
from trtllm_lite.bench.workload import PlannedRequest, Workload
from trtllm_lite.builder import build_engine
from trtllm_lite.cli import cli
from trtllm_lite.cli.bench.options import REGRESSED
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.runtime import ModelRunner

LIMITS = {"max_batch_size": 8, "max_input_len": 96, "max_seq_len": 128, "max_num_tokens": 64}
PROMPTS = ("--num_requests", 12, "--input_len", "5:40", "--num_threads", 1)
WORKLOAD = (*PROMPTS, "--output_len", "2:20")


@pytest.fixture(scope="module")
def engine_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bench")
    save_tiny_model(FAMILIES[0], directory / "model")
    convert_checkpoint(str(directory / "model"), directory / "checkpoint")
    build_engine(directory / "checkpoint", directory / "engine", tokens_per_block=16, max_draft_len=2, **LIMITS)
    return directory / "engine"


def bench(command: str, engine_dir: Path, *arguments: Any) -> Result:
    return CliRunner().invoke(cli, ["bench", command, "--engine_dir", str(engine_dir), *map(str, arguments)])


def reports(command: str, engine_dir: Path, path: Path, *arguments: Any) -> list[dict[str, Any]]:
    result = bench(command, engine_dir, *arguments, "--json", path)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_batch_size": 2, "kv_cache_enable_block_reuse": True},
        {"max_tokens_in_paged_kv_cache": 128},
        {"max_tokens_in_paged_kv_cache": 128, "capacity_scheduler_policy": "MAX_UTILIZATION"},
    ],
    ids=str,
)
@pytest.mark.parametrize("concurrency", [None, 3])
def test_served_requests_get_the_tokens_each_gets_alone(
    engine_dir: Path, options: dict[str, Any], concurrency: int | None
) -> None:
    workload = Workload(num_requests=20, input_len="5:40", output_len="1:30", priorities="0:3,9:1", prefix_len=16)
    alone = ModelRunner.from_dir(engine_dir, num_threads=1)
    requests = workload.requests(alone.session.manifest.model.vocab_size, alone.limits)
    runner = ModelRunner.from_dir(engine_dir, num_threads=1, **options)
    finished: list[tuple[int, int]] = []
    run = serve(
        runner.session,
        requests,
        concurrency=concurrency,
        on_finished=lambda done, total: finished.append((done, total)),
    )
    for request, tokens in zip(requests, run.outputs, strict=True):
        expected = alone.generate(
            [request.prompt_ids], max_new_tokens=request.output_len, end_id=-1, temperature=0, repetition_penalty=1
        )
        assert tokens == expected[0, 0, request.prompt_len :].tolist()
    assert finished == [(done, 20) for done in range(1, 21)]
    assert all(0 <= use <= 1 for use in run.kv_use)
    stats = runner.session.stats()
    preemptions = stats.num_recompute_preemptions + stats.num_swap_preemptions
    assert sum(record.num_preemptions for record in run.records) == preemptions


def test_instants_are_in_order(engine_dir: Path) -> None:
    runner = ModelRunner.from_dir(engine_dir, num_threads=1)
    requests = [PlannedRequest(0.002 * row, np.arange(1, 9, dtype=np.int32), 6) for row in range(8)]
    run = serve(runner.session, requests, concurrency=2)
    for record in run.records:
        instants = [record.arrival_s, record.sent_s, *record.token_times_s]
        assert instants == sorted(instants)
        assert len(record.token_times_s) == 6
    starts = [(record.sent_s, 1) for record in run.records]
    ends = [(record.token_times_s[-1], -1) for record in run.records]
    running = np.cumsum([change for _, change in sorted(starts + ends)])
    assert running.max() <= 2


def test_latency_reports_every_shape(engine_dir: Path, tmp_path: Path) -> None:
    arguments = ("--batch_size", "1,3", "--input_len", "8,24", "--output_len", 5, "--repeats", 1, "--num_threads", 1)
    found = reports("latency", engine_dir, tmp_path / "l.json", *arguments)
    shapes = [(report["shape"]["batch_size"], report["shape"]["input_len"]) for report in found]
    assert shapes == [(1, 8), (1, 24), (3, 8), (3, 24)]
    engine = read_engine(engine_dir)
    for report in found:
        figures = report["figures"]
        assert figures["time_to_first_token_s"] > 0
        assert figures["host_s_per_decode_step"] > 0
        assert figures["fraction_of_floor"] * figures["inter_token_latency_s"] == pytest.approx(
            figures["floor_inter_token_latency_s"]
        )
        assert figures["weight_bytes_per_step"] == weight_bytes_per_step(engine)
        assert report["engine"]["limits"] == {**LIMITS, "max_draft_len": 2, "max_beam_width": LIMITS["max_batch_size"]}


def test_a_busy_machine_does_not_make_tokens_take_less_than_nothing(
    engine_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the one-token runs are slowed down; the longer runs' time minus theirs must not become negative."""
    shape, longest = LatencyShape(batch_size=2, input_len=8, output_len=5, repeats=1), []

    def slowed(*arguments: Any, **options: Any) -> Run:
        run = serve(*arguments, **options)
        is_first = len(run.outputs[0]) == 1
        longest.append(0.0 if is_first else run.seconds)
        return replace(run, seconds=run.seconds + 1e6 * is_first)

    monkeypatch.setattr("trtllm_lite.bench.latency.serve", slowed)
    figures = LatencyBench(engine_dir, [shape], num_threads=1).measure(shape, lambda *_: None)
    assert figures["time_to_first_token_s"] > 1e6
    assert 0 < figures["inter_token_latency_s"] <= longest[-1] / 4
    assert figures["decode_tokens_per_s"] * figures["inter_token_latency_s"] == pytest.approx(2)


def test_a_step_reads_weights_and_the_cache_so_far(engine_dir: Path) -> None:
    engine = read_engine(engine_dir)
    cache = engine.manifest.kv_cache
    shape = LatencyShape(batch_size=3, input_len=10, output_len=5)
    per_token = 2 * cache.num_layers * prod(cache.groups[0].caches[0].shape) * 4
    contexts = [10 + step for step in range(1, 5)]  # positions that steps 1 to 4 attend to, including their own
    assert kv_bytes_per_step(engine, shape) == pytest.approx(3 * np.mean(contexts) * per_token)
    assert 0 < weight_bytes_per_step(engine) <= engine.manifest.memory.weights


def test_throughput_counts_what_the_workload_asks_for(engine_dir: Path, tmp_path: Path) -> None:
    (report,) = reports("throughput", engine_dir, tmp_path / "t.json", *WORKLOAD, "--price_per_hour", 1.5)
    limits = ModelRunner.from_dir(engine_dir).limits
    requests = Workload(num_requests=12, input_len="5:40", output_len="2:20").requests(64, limits)
    figures = report["figures"]
    assert figures["output_tokens"] == sum(request.output_len for request in requests)
    assert figures["prompt_tokens"] == sum(request.prompt_len for request in requests)
    assert figures["output_tokens_per_s"] * figures["seconds"] == pytest.approx(figures["output_tokens"])
    assert figures["cost_per_million_output_tokens"] > figures["cost_per_million_total_tokens"] > 0
    assert figures["steps"] > 0
    assert {"commit", "date", "versions", "machine"} <= set(report)


def test_throughput_reports_drafts(engine_dir: Path, tmp_path: Path) -> None:
    config = {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "prompt_lookup_min": 1,
        "enable_adaptive_verification": False,
    }
    asked = (*PROMPTS, "--output_len", 50, "--speculative_config", json.dumps(config))
    (report,) = reports("throughput", engine_dir, tmp_path / "t.json", *asked)
    figures = report["figures"]
    assert report["runtime"]["speculative_config"] == config
    assert 0 <= figures["acceptance_2"] <= 1 <= figures["mean_acceptance_length"] <= 3
    assert "acceptance_3" not in figures
    assert "is not a JSON object" in bench("throughput", engine_dir, "--speculative_config", "ngram").output


def test_synthetic_drafts_are_measured_in_a_second_run(engine_dir: Path, tmp_path: Path) -> None:
    config = {
        "method": "synthetic",
        "num_speculative_tokens": 2,
        "synthetic_acceptance_rates": [1.0, 0.0],
        "enable_adaptive_verification": False,
    }
    asked = (*PROMPTS, "--output_len", 50, "--speculative_config", json.dumps(config))
    (report,) = reports("throughput", engine_dir, tmp_path / "report.json", *asked)
    figures = report["figures"]
    assert (figures["acceptance_1"], figures["acceptance_2"]) == (1.0, 0.0)
    assert figures["mean_acceptance_length"] == 2.0


def test_serve_sim_reports_latencies_and_goodput(engine_dir: Path, tmp_path: Path) -> None:
    arguments = ("--arrival", "burst", "--request_rate", 400, "--goodput", "ttft:1e6", "--goodput", "e2el:1e-6")
    (report,) = reports("serve-sim", engine_dir, tmp_path / "s.json", *WORKLOAD, *arguments)
    figures = report["figures"]
    assert figures["goodput_share"] == 0
    for name in ("time_to_first_token_s", "time_per_output_token_s", "inter_token_latency_s", "end_to_end_latency_s"):
        assert 0 <= figures[name]["p50"] <= figures[name]["p95"] <= figures[name]["p99"]
    assert report["terms"]["goodput"] == {"ttft": 1e3, "e2el": pytest.approx(1e-9)}


def test_traces_have_all_steps_and_all_requests(engine_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    (report,) = reports("throughput", engine_dir, tmp_path / "t.json", *WORKLOAD, "--trace", path)
    events = json.loads(path.read_text())["traceEvents"]
    steps = [event for event in events if event["ph"] == "X" and event["tid"] == 1]
    assert len(steps) == report["figures"]["steps"]
    ends = [0.0, *(step["ts"] + step["dur"] for step in steps)]
    assert all(step["ts"] >= end - 1 for step, end in zip(steps[1:], ends[1:], strict=False))
    assert sum(step["args"]["tokens of prompts"] for step in steps) >= report["figures"]["prompt_tokens"] / 2
    begun = [event for event in events if event["ph"] == "b" and event["name"].startswith("request ")]
    assert sum(event["args"]["output tokens"] for event in begun) == report["figures"]["output_tokens"]
    assert max(event["ts"] for event in events if event["ph"] == "e") >= ends[-1] - 1


def test_traces_of_latency_have_the_kernels_of_each_shape(engine_dir: Path, tmp_path: Path) -> None:
    """A shape's prefill and decode step have a slice with a duration for every call of the engine's plan."""
    path = tmp_path / "trace.json"
    asked = ("--batch_size", "1,3", "--input_len", 20, "--output_len", 4, "--repeats", 1)
    assert len(reports("latency", engine_dir, tmp_path / "l.json", *asked, "--trace", path)) == 2
    named, slices = {}, defaultdict(list)
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["name"] == "process_name":
            named[event["pid"]] = event["args"]["name"]
        if event["ph"] == "X":
            slices[event["pid"]].append(event)
    kernels = {name: slices[pid] for pid, name in named.items() if name.startswith("kernels of")}
    assert list(kernels) == [
        name
        for batch in (1, 3)
        for name in (
            f"kernels of a prefill: {batch} x 20 tokens",
            f"kernels of a decode step: batch {batch} behind 20 tokens",
        )
    ]
    (program,) = read_engine(engine_dir).plan.programs
    operators = Counter(instruction.op for instruction in program.instructions)
    for found in kernels.values():
        assert Counter(event["name"] for event in found) == operators
        assert all(event["dur"] > 0 for event in found)


def test_texts_are_made_unless_token_ids_alone_are_asked_for(engine_dir: Path, tmp_path: Path) -> None:
    for path in shutil.copytree(engine_dir.parent / "model", tmp_path / "model").glob("tokenizer*"):
        path.unlink()
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    without = tmp_path / "engine"
    build_engine(tmp_path / "checkpoint", without, tokens_per_block=16, **LIMITS)
    refused = bench("throughput", without, *WORKLOAD)
    assert refused.exit_code == 1
    assert "this engine has no tokenizer to make texts with" in refused.stderr
    (report,) = reports("throughput", without, tmp_path / "t.json", *WORKLOAD, "--tokenizer", engine_dir)
    assert report["shape"]["detokenize"]
    (ids,) = reports("throughput", without, tmp_path / "i.json", *WORKLOAD, "--skip_tokenizer_init")
    assert ids["shape"] == report["shape"] | {"detokenize": False}
    assert ids["figures"]["output_tokens"] == report["figures"]["output_tokens"]


def test_comparison_on_the_command_line(engine_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    (report,) = reports("throughput", engine_dir, path, *WORKLOAD)
    same = bench("throughput", engine_dir, *WORKLOAD, "--compare", path, "--tolerance", 1e9)
    assert same.exit_code == 0, same.output
    report["figures"]["output_tokens_per_s"] *= 1e6
    path.write_text(json.dumps([report]))
    page = tmp_path / "page.html"
    slower = bench("throughput", engine_dir, *WORKLOAD, "--compare", path, "--tolerance", 0.5, "--html", page)
    assert slower.exit_code == REGRESSED, slower.output
    assert "REGRESSED" in page.read_text()
    assert page.read_text().count('<svg class="chart"') >= 6
    other = bench("throughput", engine_dir, *WORKLOAD, "--compare", path, "--seed", 9)
    assert other.exit_code == 1
    assert "shape.seed: 0 in the baseline, 9 now" in other.stderr


def test_the_floor_may_be_reckoned_with_a_bandwidth_that_is_known(engine_dir: Path, tmp_path: Path) -> None:
    arguments = ("--input_len", 8, "--output_len", 5, "--repeats", 1, "--memory_bandwidth", 4)
    (report,) = reports("latency", engine_dir, tmp_path / "l.json", *arguments)
    figures = report["figures"]
    read = figures["weight_bytes_per_step"] + figures["kv_bytes_per_step"]
    assert figures["floor_inter_token_latency_s"] == pytest.approx(read / 4e9)
    result = bench("latency", engine_dir, "--memory_bandwidth", 0)
    assert "bandwidth is 0.0: expected a finite number above 0" in result.stderr


def test_a_batch_that_cannot_run_side_by_side_is_an_error(engine_dir: Path) -> None:
    result = bench("latency", engine_dir, "--batch_size", "1,9", "--input_len", 8, "--output_len", 5)
    assert result.exit_code == 1
    assert "batch_size is 9 and max_batch_size 8: lower it, or build the engine with a larger" in result.stderr
    result = bench("latency", engine_dir, "--input_len", 97, "--output_len", 5)
    assert "input_len is 97 and max_input_len 96: lower it" in result.stderr
    result = bench("latency", engine_dir, "--input_len", 96, "--output_len", 40)
    assert "input_len + output_len is 136 and max_seq_len 128: lower it" in result.stderr


def test_requests_may_have_made_up_adapters_in_turn(engine_dir: Path, tmp_path: Path) -> None:
    adapted = tmp_path / "engine"
    build_engine(engine_dir.parent / "checkpoint", adapted, tokens_per_block=16, max_lora_rank=8, **LIMITS)
    plain = reports("throughput", adapted, tmp_path / "plain.json", *WORKLOAD)[0]
    adapters = ("--num_loras", 3, "--lora_rank", 5)
    report = reports("throughput", adapted, tmp_path / "adapted.json", *WORKLOAD, *adapters)[0]
    assert report["figures"]["output_tokens"] == plain["figures"]["output_tokens"]
    assert report["shape"] == plain["shape"] | {"num_loras": 3, "lora_rank": 5}
    refused = bench("throughput", adapted, *WORKLOAD, *adapters, "--compare", tmp_path / "plain.json")
    assert refused.exit_code == 1
    assert "shape" in refused.output
    assert "above max_lora_rank 8" in bench("throughput", adapted, *WORKLOAD, "--num_loras", 1).output
    assert "--max_lora_rank" in bench("throughput", engine_dir, *WORKLOAD, *adapters).output
    assert "give num_loras" in bench("throughput", adapted, *WORKLOAD, "--lora_rank", 8).output
