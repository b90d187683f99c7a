"""Comparison with a baseline: which changes are regressions, and what is not compared at all."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_lite.bench.compare import Tolerance, Verdict, changes, find_baseline, parse_tolerance, read_reports
from trtllm_lite.errors import ArgumentError

REPORT = {
    "benchmark": "throughput",
    "commit": "a",
    "date": "2026-01-01",
    "versions": {"numpy": "1"},
    "machine": {"cpu": "c", "cores": 2, "system": "Linux-6"},
    "engine": {"dtype": "float32", "limits": {"max_batch_size": 8}},
    "shape": {"num_requests": 4, "seed": 0},
    "runtime": {},
    "terms": {},
    "figures": {
        "output_tokens_per_s": 100.0,
        "time_to_first_token_s": {"mean": 1.0, "p50": 1.0, "p95": 2.0, "p99": 3.0},
    },
}


def verdicts(now, baseline, tolerance=0.05):
    return {(change.name, change.part): change.verdict for change in changes(now, baseline, Tolerance(tolerance))}


@pytest.mark.parametrize(
    ("name", "factor", "verdict"),
    [
        ("output_tokens_per_s", 0.94, Verdict.REGRESSED),
        ("output_tokens_per_s", 0.96, Verdict.WITHIN),
        ("output_tokens_per_s", 1.04, Verdict.WITHIN),
        ("output_tokens_per_s", 1.06, Verdict.IMPROVED),
        ("inter_token_latency_s", 1.06, Verdict.REGRESSED),
        ("inter_token_latency_s", 1.04, Verdict.WITHIN),
        ("inter_token_latency_s", 0.94, Verdict.IMPROVED),
        ("cost_per_million_output_tokens", 1.06, Verdict.REGRESSED),
    ],
)
def test_each_metric_has_its_direction(name, factor, verdict):
    assert verdicts({name: 8.0 * factor}, {name: 8.0}) == {(name, ""): verdict}


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.floats(0, 2))
def test_a_regression_one_way_is_none_the_other_way(old, new, tolerance):
    found = [verdicts({name: new}, {name: old}, tolerance)[name, ""] for name in ("load_s", "requests_per_s")]
    assert found.count(Verdict.REGRESSED) <= 1
    assert (Verdict.REGRESSED in found) == (Verdict.IMPROVED in found)
    assert (found == [Verdict.WITHIN] * 2) == (not abs(new - old) > tolerance * old)


def test_distributions_are_judged_at_the_median_and_the_95th_percentile():
    now = {"time_to_first_token_s": {"mean": 9.0, "p50": 9.0, "p95": 2.0, "p99": 9.0}}
    found = verdicts(now, {"time_to_first_token_s": REPORT["figures"]["time_to_first_token_s"]})
    assert found == {
        ("time_to_first_token_s", "p50"): Verdict.REGRESSED,
        ("time_to_first_token_s", "p95"): Verdict.WITHIN,
    }


def test_figures_without_direction_or_baseline_are_not_judged():
    now = {"steps": 9.0, "queue_s": {"p50": 9.0}, "load_s": 9.0, "goodput_share": 0.5, "requests_per_s": 1.0}
    old = {"steps": 1.0, "queue_s": {"p50": 1.0}, "goodput_share": 0.0, "requests_per_s": 1.0, "of_old_versions": 1.0}
    assert verdicts(now, old) == {("requests_per_s", ""): Verdict.WITHIN}


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"output_tokens_per_s": 100.0}, "has time_to_first_token_s p50, which was not measured now"),
        ({}, "has output_tokens_per_s, which was not measured now"),
    ],
)
def test_what_was_not_measured_does_not_pass(now, message):
    with pytest.raises(ArgumentError, match=message):
        verdicts(now, REPORT["figures"])


def test_a_baseline_with_nothing_to_judge_does_not_pass():
    with pytest.raises(ArgumentError, match="no figure that can be judged"):
        verdicts(REPORT["figures"], {"steps": 3})


def test_a_metric_may_have_a_tolerance_of_its_own():
    tolerance = parse_tolerance(["0.1", "time_to_first_token_s=0.5"])
    old = {"output_tokens_per_s": 100.0, "time_to_first_token_s": {"p50": 1.0}}
    now = {"output_tokens_per_s": 85.0, "time_to_first_token_s": {"p50": 1.4}}
    found = {change.name: (change.verdict, change.tolerance) for change in changes(now, old, tolerance)}
    assert found == {
        "output_tokens_per_s": (Verdict.REGRESSED, 0.1),
        "time_to_first_token_s": (Verdict.WITHIN, 0.5),
    }


@pytest.mark.parametrize("text", ["-0.1", "5%", "steps=0.1", "absent=0.1", "nan", "load_s=", ""])
def test_tolerances_of_another_form_are_errors(text):
    with pytest.raises(ArgumentError, match=r"expected a share such as 0\.05"):
        parse_tolerance([text])


def changed(path, value):
    report = copy.deepcopy(REPORT)
    *parents, last = path
    entry = report
    for key in parents:
        entry = entry[key]
    entry[last] = value
    return report


@pytest.mark.parametrize(
    "path",
    [
        ("benchmark",),
        ("engine", "dtype"),
        ("engine", "limits", "max_batch_size"),
        ("shape", "num_requests"),
        ("shape", "seed"),
        ("runtime", "max_batch_size"),
        ("terms", "price_per_hour"),
        ("machine", "cores"),
    ],
)
def test_another_measurement_is_refused_and_named(path):
    with pytest.raises(ArgumentError, match=rf"{'.'.join(path)}: .* in the baseline, 'other' now") as caught:
        find_baseline(changed(path, "other"), [REPORT])
    assert str(caught.value).count("in the baseline") == 1


@pytest.mark.parametrize("path", [("commit",), ("date",), ("versions", "numpy"), ("machine", "system"), ("figures",)])
def test_other_code_and_other_days_are_what_it_is_for(path):
    assert find_baseline(changed(path, "other"), [REPORT]) is REPORT


def test_the_matching_report_of_many_is_found():
    others = [changed(("shape", "seed"), seed) for seed in (1, 2, 3)]
    assert find_baseline(others[1], [*others, REPORT]) is others[1]
    with pytest.raises(ArgumentError, match="holds 2 reports of this very benchmark"):
        find_baseline(REPORT, [REPORT, *others, changed(("date",), "later")])


def test_the_nearest_report_explains_the_refusal():
    far = changed(("engine",), {"dtype": "bfloat16", "limits": {"max_batch_size": 1}})
    with pytest.raises(ArgumentError, match=r"shape\.seed: 0 in the baseline, 5 now\n"):
        find_baseline(changed(("shape", "seed"), 5), [far, REPORT])


def test_reports_are_read_back(tmp_path):
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps([REPORT]))
    assert read_reports(path) == [REPORT]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the baseline .*No such file"),
        ("{", "is not JSON"),
        ("{}", "is not a list of benchmark reports"),
        ("[]", "is not a list of benchmark reports"),
        ("[" * 100_000, "is not JSON"),
        (json.dumps([{**REPORT, "figures": {"steps": "7"}}]), "is not a list of benchmark reports"),
        (json.dumps([{**REPORT, "figures": [1]}]), "is not a list of benchmark reports"),
        (json.dumps([{**REPORT, "date": 5}]), "is not a list of benchmark reports"),
        ('[{"figures": {}}]', "is not a list of benchmark reports"),
    ],
)
def test_files_that_are_no_baseline_are_errors(tmp_path, content, message):
    path = tmp_path / "baseline.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ArgumentError, match=message):
        read_reports(path)
