"""Writes the figures of a benchmark to a JSON file, a page and a trace, and compares them with a baseline."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_lite.cli.bench.options import REGRESSED

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from trtllm_lite.bench.page import Comparison

Report = dict[str, Any]

_BUSY_SHARE = 0.3


@dataclass
class Results:
    """Writes and judges the reports of a benchmark.

    It is made before anything is measured, so that errors in the options or the baseline show at once.
    """

    json_path: str | None
    html_path: str | None
    trace_path: str | None
    compare: str | None
    tolerance: Sequence[str]

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> "Results":
        """The results that ``options`` ask for; removes their options from ``options``."""
        return cls(**{entry.name: options.pop(entry.name) for entry in fields(cls)})

    def __post_init__(self) -> None:
        from trtllm_lite.bench.compare import parse_tolerance, read_reports
        from trtllm_lite.bench.trace import Trace
        from trtllm_lite.common.files import require_writable

        if self.tolerance and not self.compare:
            raise click.UsageError("--tolerance needs --compare BASELINE")
        paths = {"--json": self.json_path, "--html": self.html_path, "--trace": self.trace_path}
        for option, path in paths.items():
            if path:
                with _writing(path, option):
                    require_writable(Path(path))
        self.trace = Trace() if self.trace_path else None
        self._tolerance = parse_tolerance(self.tolerance)
        self._baselines = read_reports(self.compare) if self.compare else []
        self._expected: list[Mapping[str, Any]] = []

    def expect(self, identities: Sequence[Mapping[str, Any]]) -> None:
        """Find the baseline of each measurement to come. Raises ArgumentError if a measurement has none."""
        from trtllm_lite.bench.compare import find_baseline

        if self.compare:
            self._expected = [find_baseline(identity, self._baselines) for identity in identities]

    def write(self, reports: Sequence[Report]) -> None:
        """Write the JSON file and the trace, as far as they are requested."""
        if self.json_path:
            _write(self.json_path, json.dumps(reports, indent=2) + "\n", "--json")
        if self.trace_path and self.trace is not None:
            _write(self.trace_path, json.dumps(self.trace.document()), "--trace")

    def finish(self, reports: Sequence[Report]) -> None:
        """Write the files and judge the figures, in the order of :meth:`expect`; exit code 3 on a regression."""
        self.write(reports)
        comparisons = self._comparisons(reports) if self.compare else []
        if self.html_path:
            from trtllm_lite.bench.page import render_page

            _write(self.html_path, render_page(reports, comparisons), "--html")
        if comparisons:
            _judge(reports, comparisons)

    def _comparisons(self, reports: Sequence[Report]) -> "list[Comparison]":
        from trtllm_lite.bench.compare import changes
        from trtllm_lite.bench.page import Comparison

        return [
            Comparison(baseline, changes(report["figures"], baseline["figures"], self._tolerance))
            for report, baseline in zip(reports, self._expected, strict=True)
        ]


def _judge(reports: Sequence[Report], comparisons: "Sequence[Comparison]") -> None:
    from trtllm_lite.bench.compare import Verdict
    from trtllm_lite.bench.page import label

    for report, comparison in zip(reports, comparisons, strict=True):
        _print_changes(label(report), comparison)
    verdicts = [change.verdict for comparison in comparisons for change in comparison.changes]
    regressed = verdicts.count(Verdict.REGRESSED)
    click.echo(f"{regressed} of {len(verdicts)} figures regressed beyond the tolerance")
    if regressed:
        click.get_current_context().exit(REGRESSED)


def warn_if_busy() -> float:
    """Warn if other work on the machine will distort the figures; returns the number of busy cores."""
    from trtllm_lite.bench.machine import busy_cores, num_cores

    busy = busy_cores()
    if busy > _BUSY_SHARE * num_cores():
        click.echo(f"Warning: {busy:.1f} of {num_cores()} cores were busy just now; speeds will be too low", err=True)
    return busy


def _print_changes(label: str, comparison: "Comparison") -> None:
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
        for change in comparison.changes
    ]
    baseline = comparison.baseline
    title = f"{label}; baseline of {baseline['date'][:10]}, commit {str(baseline['commit'])[:10]}"
    print_table(title, ["metric", "baseline", "now", "change", "tolerance", "verdict"], rows)


def _write(path: str, text: str, option: str) -> None:
    from trtllm_lite.common.files import write_file

    with _writing(path, option):
        write_file(Path(path), text.encode())
    click.echo(f"wrote {path}")


def _writing(path: str, option: str) -> "AbstractContextManager[None]":
    from trtllm_lite.common.files import writing

    return writing(path, f"choose another file for {option}")
