"""Makes tables of GPU engines with draft tokens, with adapters, or deterministic, from reports of benchmarks."""

from collections.abc import Sequence
from typing import Any

from trtllm_lite.quantize.schemes import FULL_PRECISION

Report = dict[str, Any]


def variant(report: Report) -> tuple[str, ...]:
    """The variant that a GPU's report measures, besides models, shapes and quantization; empty for plain engines."""
    engine, runtime = report["engine"], report["runtime"]
    if engine.get("deterministic"):
        return ("deterministic",)
    if engine["limits"].get("max_draft_len"):
        return ("speculation", str(runtime["max_batch_size"]), str(runtime.get("speculative_config", "")))
    if engine.get("max_lora_rank"):
        return ("adapters", str(report["shape"].get("num_loras", 0)))
    return ()


def speculation_table(reports: list[Report]) -> str:
    """The Markdown of throughput with a fixed or an adaptive number of draft tokens, beside throughput without them."""
    rates: dict[int, dict[str, float]] = {}
    for report in reports:
        rates.setdefault(report["runtime"]["max_batch_size"], {})[_kind(report)] = _rate(report)
    shape = reports[0]["shape"]
    titles = [f"requests at a time, {shape['input_len']} in, {shape['output_len']} out"]
    titles += ["without drafts", "always 4 drafts", "as many as save time", "commit"]
    rows = []
    for batch, by_kind in sorted(rates.items()):
        plain = by_kind["plain"]
        faster = [f"{by_kind[kind]:,.0f} tok/s ({by_kind[kind] / plain:.2f}×)" for kind in ("always", "paced")]
        rows.append([str(batch), f"{plain:,.0f} tok/s", *faster, str(reports[0]["commit"])[:10]])
    return markdown(titles, rows)


def adapters_table(reports: list[Report], plain: list[Report]) -> str:
    """The Markdown of throughput with adapters, beside that of the ``plain`` report of the same shape."""
    shape = reports[0]["shape"]
    lengths = ("input_len", "output_len", "num_requests")
    (base,) = (
        _rate(each)
        for each in plain
        if each["benchmark"] == "throughput" and all(each["shape"][name] == shape[name] for name in lengths)
    )
    rows = [["engine without room for adapters", f"{base:,.0f} tok/s", "", str(reports[0]["commit"])[:10]]]
    for report in sorted(reports, key=lambda report: int(report["shape"].get("num_loras", 0))):
        count, rate = report["shape"].get("num_loras", 0), _rate(report)
        name = f"{count} adapters of rank {report['shape']['lora_rank']}, in turn" if count else "no adapter in use"
        rows.append([name, f"{rate:,.0f} tok/s", f"{rate / base:.1%}", str(report["commit"])[:10]])
    batch = reports[0]["engine"]["limits"]["max_batch_size"]
    title = f"{batch} requests at a time, {shape['input_len']} in, {shape['output_len']} out"
    return markdown([title, "measured", "of the first", "commit"], rows)


def deterministic_table(reports: list[Report], plain: list[Report]) -> str:
    """The Markdown of times per token of deterministic engines, beside those of ``plain`` reports of their kind."""
    times = {(_form(report), _batch(report)): _time(report) for report in plain if _same_model(report, reports[0])}
    rows = []
    for report in sorted(reports, key=lambda report: (_form(report), _batch(report))):
        form, batch, time = _form(report), _batch(report), _time(report)
        without, cells = times[form, batch], [f"{form}, batch {batch}", f"{time * 1e3:.2f} ms"]
        rows.append([*cells, f"{without * 1e3:.2f} ms", f"{time / without - 1:+.0%}", str(report["commit"])[:10]])
    return markdown(["time per token, `build --deterministic`", "measured", "without", "difference", "commit"], rows)


def _form(report: Report) -> str:
    """The type of weights, for a title."""
    engine = report["engine"]
    return str(engine["dtype"] if engine["qformat"] == FULL_PRECISION else engine["qformat"])


def _kind(report: Report) -> str:
    config = report["runtime"].get("speculative_config")
    if config is None:
        return "plain"
    return "paced" if config.get("enable_adaptive_verification", True) else "always"


def _rate(report: Report) -> float:
    return float(report["figures"]["output_tokens_per_s"])


def _batch(report: Report) -> int:
    return int(report["shape"]["batch_size"])


def _time(report: Report) -> float:
    return float(report["figures"]["inter_token_latency_s"])


def _same_model(report: Report, other: Report) -> bool:
    if report["benchmark"] != other["benchmark"]:
        return False
    lengths = ("input_len", "output_len")
    same_shape = all(report["shape"][name] == other["shape"][name] for name in lengths)
    return same_shape and report["engine"]["hidden_size"] == other["engine"]["hidden_size"]


def markdown(titles: Sequence[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (titles, ["---"] * len(titles), *rows))
