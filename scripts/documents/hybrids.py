"""Makes the documents' tables of hybrids on GPUs, from reports of ``measure_hybrids.sh``."""

import json
from pathlib import Path

from documents.latencies import Report, is_of_first_token, latency_row, lengths_of, measured_on, shape_of_model
from documents.variants import markdown

MODELS = {
    "Qwen3_5MoeForCausalLM": "Qwen3.5-35B-A3B",
    "Qwen3_5ForCausalLM": "Qwen3.6-27B",
    "NemotronHForCausalLM": "Nemotron 3 Nano 30B-A3B",
}


def hybrids_table(path: Path) -> str:
    """The Markdown of one baseline file, a row for each report: those of a model's shape and type side by side."""
    reports = sorted(json.loads(path.read_text()), key=_place)
    rows = [latency_row(MODELS, report, _prompt_rate(report)) for report in reports]
    first, terms = reports[0], reports[0]["terms"]
    of_tokens = [report for report in reports if not is_of_first_token(report)]
    peaks = [f"{peak:,.0f}" for peak in sorted({report["terms"]["peak_tflops"] for report in reports})]
    return (
        f"{measured_on(first)}; random weights and prompts. The floor of a token is the time to read the weights, the "
        f"KV cache and each state once ({terms['memory_bandwidth']:,.0f} GB/s). The floor of a first token is the time "
        f"of the prompt's products and attention ({' and, in FP8, '.join(peaks)} TFLOPS), or to read the weights once "
        "if that is longer. Of a layer's experts floors include those that were read.\n\n"
        f"{markdown(['', 'measured', 'tokens of the prompt', 'its floor', 'reached', 'commit'], rows)}\n\n"
        f"Measured by `bash scripts/measure_hybrids.sh OUT` (`trtllm-lite bench latency`, times per token with "
        f"{'; '.join(dict.fromkeys(lengths_of(report) for report in of_tokens))}).\n"
    )


def _place(report: Report) -> tuple[int, str, bool, int, int]:
    shape, model = report["shape"], list(MODELS).index(report["engine"]["architecture"])
    of_first = is_of_first_token(report)
    return model, shape_of_model(MODELS, report), of_first, shape["batch_size"], shape["input_len"]


def _prompt_rate(report: Report) -> str:
    return f"{report['figures']['prefill_tokens_per_s']:,.0f} tok/s" if is_of_first_token(report) else ""
