"""Makes the documents' table of engines of one rank and of several, from reports of ``measure_ranks.sh``."""

import json
from pathlib import Path
from typing import Any

from documents.variants import markdown

Report = dict[str, Any]
KINDS = ("latency", "first", "throughput")
SIZES = {4096: "8B", 8192: "70B"}  # sizes of Llama 3.1, by hidden size


def record_ranks(path: Path, directory: Path, commit: str | None) -> None:
    """Store the reports that ``measure_ranks.sh`` has written to ``directory``: <kind>-<number of ranks>.json."""
    known = json.loads(path.read_text()) if path.is_file() else {}
    for kind in KINDS:
        for report_path in directory.glob(f"{kind}-*.json"):
            reports = json.loads(report_path.read_text())
            for report in reports:
                report["commit"] = report["commit"] or commit
            known.setdefault(report_path.stem.partition("-")[2], {})[kind] = reports
    incomplete = [ranks for ranks, reports in known.items() if sorted(reports) != sorted(KINDS)]
    if incomplete:
        raise SystemExit(f"{path}: expected reports {', '.join(KINDS)} of {incomplete[0]} ranks, found fewer")
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def record_shapes(path: Path, directory: Path, commit: str | None) -> None:
    """Store the reports of other models and formats that ``measure_ranks.sh`` has written: shape-<name>.json."""
    reports = [report for file in sorted(directory.glob("shape-*.json")) for report in json.loads(file.read_text())]
    for report in reports:
        report["commit"] = report["commit"] or commit
    if reports:
        path.write_text(json.dumps(reports, indent=1, sort_keys=True) + "\n")


def shapes_table(path: Path, bandwidth: float) -> str:
    """The Markdown of reports of ``record_shapes``; floors follow from bytes and ``bandwidth`` in GB/s."""
    rows = []
    for report in _of_benchmark(path, "latency"):
        engine, figures = report["engine"], report["figures"]
        floor = (figures["weight_bytes_per_step"] + figures["kv_bytes_per_step"]) / bandwidth / 1e9
        time = figures["inter_token_latency_s"]
        shape = f"{_model(engine)}, {engine['tp_size']} GPUs"
        cells = [f"{time * 1e3:.2f} ms", f"{floor * 1e3:.2f} ms", f"{floor / time:.0%}", str(report["commit"])[:10]]
        rows.append([shape, str(report["shape"]["batch_size"]), *cells])
    rows.sort(key=lambda row: (row[0].startswith("70B"), row[0], int(row[1])))
    return markdown(["Llama-3.1 shape", "batch", "time per token", "its floor", "reached", "commit"], rows)


def cards_table(path: Path) -> str:
    """The Markdown of throughput in ``path``: one model's by number of cards, and that per card relative to one."""
    reports = sorted(_of_benchmark(path, "throughput"), key=_num_cards)
    if not reports:
        return ""
    rows, alone = [], reports[0]["figures"]["output_tokens_per_s"]
    for report in reports:
        engine, shape, cards = report["engine"], report["shape"], _num_cards(report)
        rate = report["figures"]["output_tokens_per_s"]
        of_card = [f"{rate / cards:,.0f} tok/s", f"{rate / cards / alone:.0%}", str(report["commit"])[:10]]
        model = f"{_model(engine)}, {engine['kv_cache_dtype']} KV cache"
        rows.append([model, str(cards), str(shape["num_requests"]), f"{rate:,.0f} tok/s", *of_card])
    shape = reports[0]["shape"]
    what = f"{shape['input_len']} in, {shape['output_len']} out"
    return markdown([what, "GPUs", "requests", "all", "a card", "of one alone", "commit"], rows) + "\n\n"


def _of_benchmark(path: Path, benchmark: str) -> list[Report]:
    return [report for report in json.loads(path.read_text()) if report["benchmark"] == benchmark]


def _num_cards(report: Report) -> int:
    return int(report["engine"].get("tp_size", 1))


def _model(engine: Report) -> str:
    weights = engine["dtype"] if engine["qformat"] == "full_prec" else engine["qformat"]
    return f"{SIZES[engine['hidden_size']]}, {weights}"


def ranks_table(path: Path) -> str:
    """The Markdown of one baseline file."""
    by_ranks = {int(ranks): _figures(reports) for ranks, reports in json.loads(path.read_text()).items()}
    one, *others = (by_ranks[ranks] for ranks in sorted(by_ranks))
    titles = ["Llama-3.1-8B shape, bfloat16", "one GPU"]
    for ranks in sorted(by_ranks)[1:]:
        titles += [f"{ranks} GPUs", "", "its floor", "reached"]
    rows = [
        [title, _text(one, title), *(cell for other in others for cell in _cells(one, other, title))] for title in one
    ]
    reports = json.loads(path.read_text())[str(max(by_ranks))]
    (report,) = reports["throughput"]
    return (
        f"{report['machine']['gpu']}, driver {report['versions']['driver']}, {report['date'][:10]}, commit "
        f"{_commits(reports)}; random weights and prompts. The floor is that of a card's own bytes or "
        f"operations ({report['terms']['memory_bandwidth']:,.0f} GB/s, {report['terms']['peak_tflops']:,.0f} TFLOPS), "
        f"without the link between the cards.\n\n{markdown(titles, rows)}\n\n{_shapes_of(path, report)}"
        "Measured by `bash scripts/measure_ranks.sh OUT` (`trtllm-lite bench latency` and `throughput`, token ids "
        "alone).\n"
    )


def _commits(reports: dict[str, list[Report]]) -> str:
    """The commit of the measured sources, or one for each kind of report."""
    commits = {kind: str(of_kind[0]["commit"])[:10] for kind, of_kind in reports.items()}
    if len(set(commits.values())) == 1:
        return commits["throughput"]
    return f"{commits['latency']}, throughput {commits['throughput']}"


def _shapes_of(path: Path, report: Report) -> str:
    shapes = path.with_name(f"shapes-of-{path.name}")
    if not shapes.is_file():
        return ""
    return f"{shapes_table(shapes, report['terms']['memory_bandwidth'])}\n\n{cards_table(shapes)}"


def _figures(reports: dict[str, list[Report]]) -> dict[str, tuple[float, float, str]]:
    """Figure, floor (or ceiling) and unit by title."""
    found = {}
    for report in reports["latency"]:
        figures = report["figures"]
        times = (figures["inter_token_latency_s"] * 1e3, figures["floor_inter_token_latency_s"] * 1e3, "ms")
        found[f"time per token, batch {report['shape']['batch_size']}"] = times
    (report,) = reports["first"]
    figures = report["figures"]
    times = (figures["time_to_first_token_s"] * 1e3, figures["floor_time_to_first_token_s"] * 1e3, "ms")
    found[f"first token, prompt of {report['shape']['input_len']:,}"] = times
    (report,) = reports["throughput"]
    figures, shape = report["figures"], report["shape"]
    rates = (figures["output_tokens_per_s"], figures["ceiling_output_tokens_per_s"], "tok/s")
    found[f"{shape['input_len']} in, {shape['output_len']} out, {shape['num_requests']} requests"] = rates
    return found


def _text(figures: dict[str, tuple[float, float, str]], title: str, which: int = 0) -> str:
    unit = figures[title][2]
    return f"{figures[title][which]:,.{2 if unit == 'ms' else 0}f} {unit}"


def _cells(
    one: dict[str, tuple[float, float, str]], other: dict[str, tuple[float, float, str]], title: str
) -> list[str]:
    """Figure, speed-up over one rank, floor, and the share of the floor that is reached."""
    value, floor, unit = other[title]
    faster = one[title][0] / value if unit == "ms" else value / one[title][0]
    reached = floor / value if unit == "ms" else value / floor
    return [_text(other, title), f"{faster:.2f}×", _text(other, title, 1), f"{reached:.0%}"]
