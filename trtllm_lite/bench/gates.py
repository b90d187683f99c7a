"""What a CPU engine is held to: memory, load time, and speed beside transformers in float32 on two cores."""

from collections.abc import Mapping
from typing import Any

_PREFILL = 1.2
_DECODE = {"bfloat16": 4.0, "float16": 4.0, "float32": 2.4}
_MEMORY_BYTES = 250e6
_LOAD_S = 0.5


def gates(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each requirement that applies to a latency report, with its bound and what was reached.

    Engines of other targets have none here; those against transformers need its figures in ``report["baseline"]``.
    """
    figures, baseline = report["figures"], report["baseline"]
    if report["engine"]["target"] != "cpu":
        return []
    found = [
        _gate("memory beyond weights and KV cache, MB", figures["memory_overhead_bytes"] / 1e6, _MEMORY_BYTES / 1e6),
        _gate("load, s", figures["load_s"], _LOAD_S),
    ]
    if baseline is not None:
        prefill, decode = (figures[name] / baseline[name] for name in ("prefill_tokens_per_s", "decode_tokens_per_s"))
        found.append(_gate("prefill, times transformers", prefill, _PREFILL, at_least=True))
        found.append(_gate("decode, times transformers", decode, _DECODE[report["engine"]["dtype"]], at_least=True))
    return found


def _gate(name: str, value: float, bound: float, at_least: bool = False) -> dict[str, Any]:
    met = value >= bound if at_least else value <= bound
    return {"name": name, "value": value, "bound": bound, "direction": ">=" if at_least else "<=", "met": met}
