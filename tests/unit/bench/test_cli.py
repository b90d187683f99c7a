"""``trtllm-lite bench``: options, JSON, the comparison and its exit code. Nothing is measured here."""

import json

import click
import pytest
from click.testing import CliRunner

from trtllm_lite.bench import report, serving_bench
from trtllm_lite.bench.floor import Ceilings
from trtllm_lite.bench.latency_shape import LatencyShape
from trtllm_lite.cli import cli
from trtllm_lite.cli.bench.latency import _POINT_METRICS, _print_points
from trtllm_lite.cli.bench.options import REGRESSED

FIGURES = {"output_tokens_per_s": 100.0, "time_to_first_token_s": {"p50": 0.5, "p95": 2.5}, "steps": 7}


def run(*arguments):
    return CliRunner().invoke(cli, ["bench", *(str(argument) for argument in arguments)])


def throughput(*arguments):
    return run("throughput", "--engine_dir", "e", "--num_requests", 2, *arguments)


@pytest.fixture
def measured(monkeypatch):
    """Let every serving benchmark return fixed figures; gives the list of the arguments of its calls."""
    calls = []

    def measure(*arguments):
        calls.append(arguments)
        return {"figures": dict(FIGURES), "by_priority": {"5": {"queue_s": {"p50": 0.25}}}}

    def identity(benchmark, engine_dir, shape, runtime, terms=None):
        named = {"benchmark": benchmark, "engine": {"path": engine_dir}, "shape": vars(shape), "runtime": dict(runtime)}
        return {**named, "terms": dict(terms or {}), "machine": {}, "commit": "0123456789ab", "date": "2026-01-01T00"}

    monkeypatch.setattr(serving_bench, "measure_serving", measure)
    monkeypatch.setattr(report, "identity", identity)
    return calls


@pytest.fixture
def baseline(measured, tmp_path):  # noqa: ARG001 - throughput() needs the fixture
    path = tmp_path / "baseline.json"
    assert throughput("--json", path).exit_code == 0
    return path


def test_options_reach_the_measurement(measured):
    result = run(
        *("serve-sim", "--engine_dir", "e", "--arrival", "burst", "--request_rate", 3, "--burstiness", 0.5),
        *("--input_len", "sharegpt", "--output-len", "4:9", "--concurrency", 2, "--priorities", "0:1,5:1", "--seed", 3),
        *("--goodput", "ttft:500", "--price_per_hour", 2, "--max_batch_size", 4, "--num_threads", 1),
        *("--capacity_scheduler_policy", "MAX_UTILIZATION", "--host_cache_size", 5000),
        *("--kv_cache_free_gpu_memory_fraction", 0.97),
        *("--memory_bandwidth", 4470, "--peak_tflops", 789, "--tokenizer", "t", "--skip_tokenizer_init"),
    )
    assert result.exit_code == 0, result.output
    ((engine_dir, workload, runtime, objectives, price, ceilings, _, tokenizer, trace),) = measured
    assert (tokenizer, workload.detokenize, trace) == ("t", False, None)
    assert ceilings == Ceilings(bandwidth=4.47e12, flops=7.89e14)
    assert (engine_dir, objectives, price) == ("e", {"ttft": 0.5}, 2)
    assert (workload.arrival, workload.request_rate, workload.burstiness, workload.concurrency) == ("burst", 3, 0.5, 2)
    assert (workload.input_len, workload.output_len, workload.priorities, workload.seed) == (
        *("sharegpt", "4:9", "0:1,5:1"),
        3,
    )
    defaults = {"capacity_scheduler_policy": "MAX_UTILIZATION", "enable_chunked_context": True}
    given = {name: value for name, value in runtime.items() if value}
    memory = {"host_cache_size": 5000, "kv_cache_free_gpu_memory_fraction": 0.97}
    assert given == {"max_batch_size": 4, "num_threads": 1, **memory, **defaults}


def test_throughput_queues_all_at_once(measured):
    assert throughput().exit_code == 0
    assert (measured[0][1].arrival, measured[0][1].concurrency) == ("all", None)


@pytest.mark.usefixtures("measured")
def test_figures_are_printed_with_their_units():
    output = throughput().output
    for text in ("priority 5", "250.00 ms", "time to first token", "500.00 ms", "2.50 s", "100 tok/s", "p95"):
        assert text in output


TERMINAL = {"COLUMNS": "80", "TTY_COMPATIBLE": "1"}


@pytest.mark.usefixtures("measured")
def test_tables_fit_a_terminal_of_80_columns(baseline):
    arguments = ["bench", "throughput", "--engine_dir", "e", "--num_requests", "2", "--compare", str(baseline)]
    lines = click.unstyle(CliRunner().invoke(cli, arguments, env=TERMINAL, color=True).stdout).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    names = "".join(line.split("│")[1].strip() for line in lines if line.count("│") == 7)
    assert "time_to_first_token_sp50" in names


def test_the_points_of_latency_fit_a_terminal_of_80_columns(monkeypatch, capsys):
    shapes = [LatencyShape(batch_size=256, input_len=131072, repeats=1), LatencyShape(batch_size=1)]
    figures = {name: 123_456.0 for names in _POINT_METRICS.values() for name in names}
    for name, value in TERMINAL.items():
        monkeypatch.setenv(name, value)
    _print_points(shapes, [{"figures": figures, "baseline": figures}] * 2)
    output = click.unstyle(capsys.readouterr().out)
    assert max(map(len, output.splitlines())) <= 80
    assert "…" not in output
    assert "medians of 1 run" in output
    assert output.count("131072") == len(_POINT_METRICS) + 1  # the 1 is in the table of ratios


def test_reports_are_written_as_json(baseline):
    (written,) = json.loads(baseline.read_text())
    assert written["benchmark"] == "throughput"
    assert written["figures"] == FIGURES
    assert written["shape"]["num_requests"] == 2


def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_measured(measured, tmp_path):
    result = throughput("--json", tmp_path / "absent" / "x.json")
    assert result.exit_code == 1
    assert "choose another file for --json" in result.stderr
    assert not measured


def test_equal_figures_are_no_regression(baseline):
    result = throughput("--compare", baseline)
    assert result.exit_code == 0
    assert "0 of 3 figures regressed beyond the tolerance" in result.output


def tamper(path, **figures):
    (report,) = json.loads(path.read_text())
    report["figures"] |= figures
    path.write_text(json.dumps([report]))


def test_a_regression_has_its_exit_code_and_line(baseline):
    tamper(baseline, output_tokens_per_s=125.0)
    result = throughput("--compare", baseline, "--tolerance", 0.19)
    assert result.exit_code == REGRESSED
    assert "1 of 3 figures regressed beyond the tolerance" in result.output
    (line,) = (line for line in result.output.splitlines() if "output_tokens_per_s" in line)
    assert [cell.strip() for cell in line.split("│")[2:-1]] == ["125 tok/s", "100 tok/s", "-20.0%", "0.19", "REGRESSED"]


@pytest.mark.parametrize("tolerance", [("0.2",), ("0", "output_tokens_per_s=0.2"), ("output_tokens_per_s=0.25", "0.1")])
def test_a_tolerance_covers_it(baseline, tolerance):
    tamper(baseline, output_tokens_per_s=125.0)
    arguments = [argument for text in tolerance for argument in ("--tolerance", text)]
    assert throughput("--compare", baseline, *arguments).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seed", "1"), "shape.seed: 0 in the baseline, 1 now"),
        (("--max_batch_size", "3"), "runtime.max_batch_size: None in the baseline, 3 now"),
        (("--price_per_hour", "3"), "terms.price_per_hour: None in the baseline, 3.0 now"),
    ],
)
def test_another_measurement_is_refused_before_it_starts(baseline, measured, arguments, message):
    measured.clear()
    result = throughput("--compare", baseline, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert not measured


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("throughput", "--tolerance", "0.1"), 2, "--tolerance needs --compare BASELINE"),
        (("throughput", "--compare", "absent.json"), 1, "cannot read the baseline absent.json"),
        (("serve-sim",), 1, "arrival poisson needs a request_rate"),
        (("serve-sim", "--arrival", "all", "--goodput", "itl:3"), 1, "expected NAME:MILLISECONDS"),
        (("serve-sim", "--arrival", "weekly"), 2, "'weekly' is not one of"),
        (("throughput", "--input_len", "long"), 1, "input_len is 'long': expected N, LEAST:MOST"),
        (("throughput", "--num_requests", "0"), 1, "num_requests is 0: expected at least 1"),
        (("latency", "--batch_size", "1,x"), 2, "'1,x' is not a list of whole numbers such as 1,8,64"),
        (("latency", "--output_len", "1"), 1, "output_len is 1: expected at least 2"),
        (("latency", "--batch_size", "4,0"), 1, "batch_size is 0: expected at least 1"),
        (("latency", "--compare_transformers", "absent.gguf"), 1, "absent.gguf does not exist"),
    ],
)
def test_wrong_options_are_told_before_anything_is_measured(measured, arguments, code, message):
    command, *options = arguments
    result = run(command, "--engine_dir", "e", *options)
    assert result.exit_code == code
    assert message in result.stderr
    assert not measured
