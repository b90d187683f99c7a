"""Writes the figures of a benchmark to a JSON file, and compares them with a baseline."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_lite.cli.bench.options import REGRESSED

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from trtllm_lite.bench.compare import Change

Report = dict[str, Any]

_BUSY_SHARE = 0.3


@dataclass
class Results:
    """Writes and judges the reports of a benchmark.

    It is made before anything is measured, so that errors in the options or the baseline show at once.
    """

    json_path: str | None
    compare: str | None
    tolerance: Sequence[str]

    def __post_init__(self) -> None:
        from trtllm_lite.bench.compare import parse_tolerance, read_reports
        from trtllm_lite.files import require_writable

        if self.tolerance and not self.compare:
            raise click.UsageError("--tolerance needs --compare BASELINE")
        if self.json_path:
            with _writing(self.json_path):
                require_writable(Path(self.json_path))
        self._tolerance = parse_tolerance(self.tolerance)
        self._baselines = read_reports(self.compare) if self.compare else []
        self._expected: list[Mapping[str, Any]] = []

    def expect(self, identities: Sequence[Mapping[str, Any]]) -> None:
        """Find the baseline of each measurement to come. Raises ArgumentError if a measurement has none."""
        from trtllm_lite.bench.compare import find_baseline

        if self.compare:
            self._expected = [find_baseline(identity, self._baselines) for identity in identities]

    def write(self, reports: Sequence[Report]) -> None:
        """Write the JSON file, if one is requested."""
        if self.json_path:
            _write(self.json_path, reports)

    def finish(self, reports: Sequence[Report]) -> None:
        """Write the JSON file and judge the figures, in the order of :meth:`expect`; exit code 3 on a regression."""
        self.write(reports)
        if self.compare:
            self._judge(reports)

    def _judge(self, reports: Sequence[Report]) -> None:
        from trtllm_lite.bench.compare import Verdict, changes

        changed: list[tuple[str, list[Change]]] = [
            (_label(report), changes(report["figures"], baseline["figures"], self._tolerance))
            for report, baseline in zip(reports, self._expected, strict=True)
        ]
        for (label, found), baseline in zip(changed, self._expected, strict=True):
            _print_changes(
                f"{label}; baseline of {baseline['date'][:10]}, commit {str(baseline['commit'])[:10]}", found
            )
        verdicts = [change.verdict for _, found in changed for change in found]
        regressed = verdicts.count(Verdict.REGRESSED)
        click.echo(f"{regressed} of {len(verdicts)} figures regressed beyond the tolerance")
        if regressed:
            click.get_current_context().exit(REGRESSED)


def warn_if_busy() -> float:
    """Warn if other work on the machine will distort the figures; returns the number of busy cores."""
    from trtllm_lite.bench.machine import busy_cores, num_cores

    busy = busy_cores()
    if busy > _BUSY_SHARE * num_cores():
        click.echo(f"Warning: {busy:.1f} of {num_cores()} cores were busy just now; figures will be too low", err=True)
    return busy


def _label(report: Report) -> str:
    """The name of a report among those of one run: the shape of its batch, or the benchmark."""
    shape = report["shape"]
    batch = f", batch {shape['batch_size']}, prompt {shape['input_len']}" if "batch_size" in shape else ""
    return f"{report['benchmark']}{batch}"


def _print_changes(title: str, found: "Sequence[Change]") -> None:
    from trtllm_lite.bench.metrics import METRICS
    from trtllm_lite.cli.console import print_table

    rows = [
        [
            f"{change.name} {change.part}".strip(),
            METRICS[change.name].text(change.baseline),
            METRICS[change.name].text(change.now),
            f"{change.relative:+.1%}",
            f"{change.tolerance:.3g}",
            change.verdict.value,
        ]
        for change in found
    ]
    print_table(title, ["metric", "baseline", "now", "change", "tolerance", "verdict"], rows)


def _write(path: str, reports: Sequence[Report]) -> None:
    from trtllm_lite.files import write_file

    with _writing(path):
        write_file(Path(path), (json.dumps(reports, indent=2) + "\n").encode())
    click.echo(f"wrote {path}")


def _writing(path: str) -> "AbstractContextManager[None]":
    from trtllm_lite.files import writing

    return writing(path, "choose another file for --json")
