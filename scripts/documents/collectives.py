"""Makes the table of AllReduce between two GPUs, and fits the lines that describe a link in the cost model."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from documents.variants import markdown
from trtllm_lite.plugins.cuda.ranks import inbox_rows

Report = dict[str, Any]
ENGINE = "trtllm_lite"
ACTIVATION_BYTES, LOGIT_BYTES = 2, 4


def record_collectives(path: Path, files: list[Path], commit: str | None) -> None:
    """Store reports of ``tests.gpu.bench_collectives``, or reports of the same form of another ``library``."""
    known = json.loads(path.read_text()) if path.is_file() else {}
    for file in files:
        report = json.loads(file.read_text())
        library = report.setdefault("library", ENGINE)
        known[library] = report | ({"commit": commit} if library == ENGINE else {})
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


@dataclass(frozen=True)
class Fit:
    """A time in seconds: ``seconds`` + ``seconds_per_feature`` * features of a row + bytes / ``bytes_per_s``."""

    seconds: float
    seconds_per_feature: float
    bytes_per_s: float

    def time(self, features: int, num_bytes: float) -> float:
        return self.seconds + self.seconds_per_feature * features + num_bytes / self.bytes_per_s


@dataclass(frozen=True)
class Link:
    """The time of transfers between ranks: ``push`` for few rows, ``stored`` with two barriers."""

    push: Fit
    stored: Fit

    def scaled(self, factor: float) -> "Link":
        """A link of ``factor`` times the bandwidth and the same latency."""
        push, stored = (replace(fit, bytes_per_s=fit.bytes_per_s * factor) for fit in (self.push, self.stored))
        return Link(push, stored)

    def all_reduce(self, rows: float, hidden: int, ranks: int) -> float:
        """Seconds of an AllReduce of ``rows`` rows with residual and norm; few rows are pushed to every other rank.

        Of more rows, the matrix products store their partial sums on the rank that adds them up; each rank then writes
        the norm of its share of the rows to all others.
        """
        if ranks == 1:
            return 0.0
        num_bytes = ACTIVATION_BYTES * rows * hidden
        if rows <= inbox_rows(ranks):
            return self.push.time(hidden, num_bytes * (ranks - 1))
        return self.stored.time(hidden, num_bytes * (ranks - 1) / ranks)

    def all_gather(self, rows: float, vocab: int, ranks: int, head: float) -> float:
        """Seconds until one rank has the logits of the others, beyond the ``head`` seconds of the LM head.

        The LM head stores them on that rank while it multiplies; a barrier follows.
        """
        if ranks == 1:
            return 0.0
        sent = LOGIT_BYTES * rows * vocab * (ranks - 1) / ranks / self.stored.bytes_per_s
        return self.stored.seconds / 2 + max(sent - head, 0.0)


def fit_link(path: Path) -> Link:
    """Fit by least squares of relative errors. With stored rows each block has many rows, which hides the time of a
    single row."""
    times = json.loads(path.read_text())[ENGINE]["times"]
    ranks = json.loads(path.read_text())[ENGINE]["ranks"]
    push, stored = _fit(times, "push", per_feature=True), _fit(times, "stored", per_feature=False)
    return Link(push, replace(stored, bytes_per_s=stored.bytes_per_s * (ranks - 1) / ranks))


def _fit(times: list[Report], way: str, *, per_feature: bool) -> Fit:
    chosen = [time for time in times if time["way"] == way]
    seconds = np.array([time["microseconds"] * 1e-6 for time in chosen])
    features = np.array([float(time["hidden"]) for time in chosen])
    num_bytes = features * [ACTIVATION_BYTES * time["rows"] for time in chosen]
    columns = [np.ones_like(seconds), num_bytes, *([features] if per_feature else [])]
    constant, per_byte, *slope = np.linalg.lstsq(np.stack(columns, 1) / seconds[:, None], np.ones_like(seconds))[0]
    return Fit(float(constant), float(slope[0]) if per_feature else 0.0, float(1 / per_byte))


def collectives_table(path: Path) -> str:
    """The Markdown of one baseline file."""
    reports, link = json.loads(path.read_text()), fit_link(path)
    report, nccl = reports[ENGINE], reports["NCCL"]
    measured = {(time["hidden"], time["rows"]): time["microseconds"] for time in report["times"]}
    others = {(time["hidden"], time["rows"]): time["microseconds"] for time in nccl["times"]}
    sizes = sorted({hidden for hidden, _ in measured})
    rows, errors = [], []
    for count in sorted({rows for _, rows in measured}):
        cells = [f"{count:,}", "push" if count <= inbox_rows(report["ranks"]) else "stored"]
        for hidden in sizes:
            fitted = link.all_reduce(count, hidden, report["ranks"]) * 1e6
            errors.append(fitted / measured[hidden, count] - 1)
            cells += [f"{measured[hidden, count]:,.1f} µs", f"{fitted:,.1f} µs ({errors[-1]:+z.0%})"]
        rows.append([*cells, f"{others[sizes[0], count]:,.1f} µs" if (sizes[0], count) in others else ""])
    most = ", ".join(f"{inbox_rows(ranks)} rows of {ranks} ranks" for ranks in (2, 4, 8, 16))
    titles = ["rows", "way"]
    for hidden in sizes:
        titles += [f"measured, rows of {hidden:,}", "fit"]
    return (
        f"Measured on two {report['gpu']}s (NVLink, {report['copy_gb_per_s']:.0f} GB/s for a copy), commit "
        f"{report['commit'][:10]}, by `python -m tests.gpu.bench_collectives FILE`: AllReduce fused with residual and "
        f"norm, in graphs. NCCL, on rows of {sizes[0]:,}: {nccl['how']}, so that its few rows are the time of a call."
        f"\n\n{markdown([*titles, f'NCCL, {sizes[0]:,}'], rows)}\n\n"
        f"Fit of a push: {link.push.seconds * 1e6:.2f} µs + {link.push.seconds_per_feature * 1e9:.2f} ns × hidden size "
        f"+ bytes / {link.push.bytes_per_s / 1e9:.0f} GB/s; of stored rows: {link.stored.seconds * 1e6:.2f} µs + bytes "
        f"that are sent / {link.stored.bytes_per_s / 1e9:.0f} GB/s. The error is at most "
        f"{max(map(abs, errors)):.0%}. Engines push up to "
        f"{most}. By the fit stored rows of {sizes[0]:,} would be faster {_bounds(link, sizes[0])}.\n"
    )


def _bounds(link: Link, hidden: int) -> str:
    """The least number of rows at which storing is faster than pushing, for several numbers of ranks."""
    texts, row_bytes = [], ACTIVATION_BYTES * hidden
    later = link.stored.time(hidden, 0) - link.push.time(hidden, 0)
    for ranks in (4, 8, 16):
        stored = (ranks - 1) / ranks / link.stored.bytes_per_s
        faster = row_bytes * ((ranks - 1) / link.push.bytes_per_s - stored)
        texts.append(f"from {later / faster:,.0f} rows on between {ranks} ranks")
    return ", ".join(texts)
