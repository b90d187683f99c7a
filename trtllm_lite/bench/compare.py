"""Compares a report with a baseline: the same benchmark on the same machine, each figure within a tolerance."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from trtllm_lite.bench.metrics import METRICS, Better, flatten, judged_direction
from trtllm_lite.errors import ArgumentError, shown

DEFAULT_TOLERANCE = 0.05
# Figures of two reports are compared only if these parts of the reports are equal, except the entries in _IGNORED.
# _REQUIRED adds the parts that a comparison prints or judges.
_IDENTITY = ("benchmark", "engine", "shape", "runtime", "terms", "machine")
_IGNORED = {"machine.system"}
_REQUIRED = {*_IDENTITY, "commit", "date", "figures"}


class Verdict(StrEnum):
    """The verdict on one number."""

    REGRESSED = "REGRESSED"
    WITHIN = "within"
    IMPROVED = "improved"


@dataclass(frozen=True)
class Change:
    """A number of a report and of its baseline, and the verdict; ``relative`` is (now - baseline) / baseline."""

    name: str
    part: str
    baseline: float
    now: float
    tolerance: float
    verdict: Verdict

    @property
    def relative(self) -> float:
        """The change as a share of the baseline."""
        return (self.now - self.baseline) / self.baseline


@dataclass(frozen=True)
class Tolerance:
    """Allowed changes for the worse, as shares of the baseline: a default, and others by metric."""

    default: float = DEFAULT_TOLERANCE
    by_metric: Mapping[str, float] | None = None

    def of(self, name: str) -> float:
        """The tolerance of one metric."""
        return (self.by_metric or {}).get(name, self.default)


def parse_tolerance(texts: Sequence[str]) -> Tolerance:
    """The tolerance that texts like ``0.05`` (for all metrics) and ``time_to_first_token_s=0.2`` describe.

    Raises ArgumentError for another form, a share that is negative, or a metric that is unknown or not judged.
    """
    default, by_metric = DEFAULT_TOLERANCE, {}
    judged = [name for name, metric in METRICS.items() if metric.better is not None]
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            share = float(value)
        except ValueError:
            share = -1.0
        if not 0 <= share < float("inf") or (name and name not in judged):
            raise ArgumentError(
                f"tolerance is {shown(text)}: expected a share such as 0.05, or METRIC=SHARE with METRIC one of "
                f"{', '.join(judged)}"
            )
        if name:
            by_metric[name] = share
        else:
            default = share
    return Tolerance(default, by_metric)


def read_reports(path: str | Path) -> list[dict[str, Any]]:
    """The reports of a file that ``trtllm-lite bench --json`` wrote. Raises ArgumentError for any other file."""
    try:
        reports = json.loads(Path(path).read_text())
    except OSError as error:
        raise ArgumentError(f"cannot read the baseline {path} ({error.strerror}): write one with --json") from error
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"the baseline {path} is not JSON ({error}): write one with --json") from error
    if not isinstance(reports, list) or not reports or not all(_is_report(entry) for entry in reports):
        raise ArgumentError(
            f"the baseline {path} is not a list of benchmark reports: write one with --json of this version"
        )
    return reports


def find_baseline(report: Mapping[str, Any], baselines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The only baseline of the same benchmark, engine, shape and machine as ``report``.

    Raises ArgumentError if there are several, or none: the message then lists how the nearest one differs.
    """
    differences = [_differences(report, baseline) for baseline in baselines]
    same = [baseline for baseline, found in zip(baselines, differences, strict=True) if not found]
    if len(same) == 1:
        return same[0]
    if same:
        raise ArgumentError(f"the baseline holds {len(same)} reports of this very benchmark: keep one of them")
    nearest = min(differences, key=len)
    raise ArgumentError(
        "the baseline was measured otherwise, and figures of different measurements are not compared:\n"
        + "\n".join(f"  {key}: {shown(old)} in the baseline, {shown(new)} now" for key, (old, new) in nearest.items())
        + "\nmeasure the same, or record another baseline with --json"
    )


def changes(figures: Mapping[str, Any], baseline: Mapping[str, Any], tolerance: Tolerance) -> list[Change]:
    """Compares every number of ``baseline`` that has a direction with the same number of ``figures``; skips zeros.

    Raises ArgumentError if there is no such number, or if ``figures`` lack one: no figure passes unmeasured.
    """
    numbers = {(name, part): number for name, part, number in flatten(figures)}
    found = []
    for name, part, old in flatten(baseline):
        better = judged_direction(name, part) if name in METRICS else None
        if better is None or not old:
            continue
        if (name, part) not in numbers:
            label = f"{name} {part}".strip()
            raise ArgumentError(f"the baseline has {label}, which was not measured now: record it again with --json")
        now, allowed = numbers[name, part], tolerance.of(name)
        found.append(Change(name, part, old, now, allowed, _verdict(better, old, now, allowed)))
    if not found:
        raise ArgumentError("the baseline has no figure that can be judged: record it again with --json")
    return found


def _is_report(entry: Any) -> bool:
    """Whether an entry of a baseline file has the parts of a report, with numbers as figures and in the timeline."""
    if not isinstance(entry, dict) or not set(entry) >= _REQUIRED:
        return False
    figures = entry["figures"]
    if not isinstance(entry["date"], str) or not isinstance(figures, dict):
        return False
    numbers: list[Any] = [number for _, _, number in flatten(figures)]
    over_time = entry.get("timeline", {"interval_s": 1})
    if not isinstance(over_time, dict) or not isinstance(over_time.get("interval_s"), int | float):
        return False
    series = [values for name, values in over_time.items() if name != "interval_s"]
    numbers += [number for values in series for number in (values if isinstance(values, list) else [None])]
    return all(type(number) in (int, float) for number in numbers)


def _verdict(better: Better, old: float, now: float, tolerance: float) -> Verdict:
    worse = now - old if better is Better.LOWER else old - now
    if worse > tolerance * old:
        return Verdict.REGRESSED
    return Verdict.IMPROVED if -worse > tolerance * old else Verdict.WITHIN


def _differences(report: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The entries that differ between two identities: (value in the baseline, value in the report) by key."""
    now, old = _flat_identity(report), _flat_identity(baseline)
    keys = [key for key in {**old, **now} if key not in _IGNORED]
    return {key: (old.get(key), now.get(key)) for key in keys if old.get(key) != now.get(key)}


def _flat_identity(report: Mapping[str, Any]) -> dict[str, Any]:
    pending = [(name, report[name]) for name in _IDENTITY]
    flat: dict[str, Any] = {}
    while pending:
        key, value = pending.pop(0)
        if isinstance(value, Mapping):
            pending.extend((f"{key}.{inner}", entry) for inner, entry in value.items())
        else:
            flat[key] = value
    return flat
