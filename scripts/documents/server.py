"""Makes the documents' table of engines' results through HTTP and without it, from reports of benchmarks."""

import json
from pathlib import Path
from typing import Any

from documents.variants import markdown

Report = dict[str, Any]
COLUMNS = (
    *("bfloat16, 128 tokens in, 128 out", "through HTTP", "the engine alone", ""),
    *("vLLM 0.26 through HTTP", "commit"),
)
KINDS = ("http", "http-1", "alone", "alone-1")


def record_server(path: Path, directory: Path, commit: str | None) -> None:
    """Store the reports that ``measure_server.sh`` has written to ``directory``: <shape>-<kind>.json."""
    known = json.loads(path.read_text()) if path.is_file() else {}
    for report_path in directory.glob("*.json"):
        shape, _, kind = report_path.stem.partition("-")
        (report,) = json.loads(report_path.read_text())
        report["commit"] = report["commit"] or commit
        known.setdefault(shape, {})[kind] = report
    incomplete = [shape for shape, reports in known.items() if sorted(reports) != sorted(KINDS)]
    if incomplete:
        raise SystemExit(f"{path}: expected reports {', '.join(KINDS)} of each shape, which {incomplete[0]} lacks")
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def server_table(path: Path) -> str:
    """The Markdown of one baseline file, with the peers' figures of ``peers-<same name>``."""
    shapes = json.loads(path.read_text())
    peers = json.loads((path.parent / f"peers-{path.name}").read_text())
    rows = [row for shape, reports in sorted(shapes.items()) for row in _rows(shape, reports, peers["figures"])]
    alone = next(iter(shapes.values()))["alone"]
    return (
        f"{alone['machine']['gpu']}, driver {alone['versions']['driver']}, {alone['date'][:10]}; random weights and "
        f"prompts, text out. {peers['source']}\n\n{markdown(COLUMNS, rows)}\n\n"
        "Measured by `bash scripts/measure_server.sh OUT` (`trtllm-lite bench serve`, beside `bench throughput` and "
        "`serve-sim`).\n"
    )


def _rows(shape: str, reports: dict[str, Report], peers: dict[str, float]) -> list[list[str]]:
    """The lines of one shape: throughput, and the latencies of one stream."""
    streams = reports["http"]["shape"]["concurrency"]

    def row(title: str, values: tuple[float, float], unit: str, digits: int) -> list[str]:
        http, alone = values
        change = f"{http / alone:.2f}×" if unit == "tok/s" else f"{http - alone:+.{digits}f} {unit}"
        peer = peers.get(f"{shape}, {title}")
        texts = ["" if value is None else f"{value:,.{digits}f} {unit}" for value in (http, alone, peer)]
        return [f"{shape}, {title}", *texts[:2], change, texts[2], str(reports["http"]["commit"])[:10]]

    def pair(name: str) -> tuple[float, float]:
        """Median milliseconds of one stream."""
        http, alone = (reports[kind]["figures"][name]["p50"] * 1e3 for kind in ("http-1", "alone-1"))
        return http, alone

    rates = tuple(reports[kind]["figures"]["output_tokens_per_s"] for kind in ("http", "alone"))
    return [
        row(f"{streams} streams", (rates[0], rates[1]), "tok/s", 0),
        row("one stream, between tokens", pair("inter_token_latency_s"), "ms", 2),
        row("one stream, first token", pair("time_to_first_token_s"), "ms", 2),
    ]
