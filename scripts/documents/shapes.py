"""Makes the documents' tables of models' shapes on CPUs beside llama.cpp, from reports of ``measure_cpu_shapes.sh``."""

import json
from pathlib import Path

from documents.variants import markdown

_MODELS = {"GraniteMoeForCausalLM": "Granite 3.0 1B-A400M", "Qwen3_5ForCausalLM": "Qwen3.5 0.8B, text"}
_SPEEDS = ("prefill_tokens_per_s", "decode_tokens_per_s")


def shapes_table(path: Path) -> str:
    """The Markdown of one baseline file, whose reports are each beside llama.cpp on the same file in the same run."""
    reports = json.loads(path.read_text())
    machine, shape = reports[0]["machine"], reports[0]["shape"]
    rows = []
    for report in reports:
        ours, theirs, engine = report["figures"], report["llama_cpp"], report["engine"]
        speeds = [f"{ours[name]:,.0f} ({ours[name] / theirs[name]:.1f}x)" for name in _SPEEDS]
        model = f"{_MODELS[engine['architecture']]}, {engine['qformat']}"
        measured = f"{report['date'][:10]}, {report['commit'][:10]}"
        rows.append([model, *speeds, f"{ours['fraction_of_floor']:.0%}", measured])
    head = ["", "prefill tok/s (x llama.cpp)", "decode tok/s (x llama.cpp)", "of the bandwidth floor", "date, commit"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, beside llama-cpp-python "
        f"{reports[0]['llama_cpp']['versions']['llama_cpp_python']} on the same file in the same run; random weights "
        f"and prompts, batch {shape['batch_size']}, {shape['input_len']} tokens in, {shape['output_len']} out.\n\n"
        f"{markdown(head, rows)}\n\n"
        "Measured by `bash scripts/measure_cpu_shapes.sh OUT`.\n"
    )
