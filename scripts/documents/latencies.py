"""Makes rows of the documents' tables from reports of ``trtllm-lite bench latency``, and what stands above them."""

from collections.abc import Mapping
from typing import Any

from documents.measured import weights

Report = dict[str, Any]
LEAST_OUTPUT_LEN = 16  # reports with fewer tokens measure the time to the first token


def is_of_first_token(report: Report) -> bool:
    """Whether a report of latency measures the time to the first token, instead of the time per token."""
    return bool(report["shape"]["output_len"] < LEAST_OUTPUT_LEN)


def latency_row(names: Mapping[str, str], report: Report, cell: str) -> list[str]:
    """What was measured, its time, the ``cell`` that a table has of its own, the floor, the share reached, the commit.

    ``names``: those of models, by architecture.
    """
    figures, shape = report["figures"], report["shape"]
    if is_of_first_token(report):
        time, floor = figures["time_to_first_token_s"], figures["floor_time_to_first_token_s"]
        what = f"first token, prompt of {shape['input_len']:,}"
    else:
        time, floor = figures["inter_token_latency_s"], figures["floor_inter_token_latency_s"]
        what = f"time per token, batch {shape['batch_size']}"
    times = [f"{time * 1e3:.2f} ms", cell, f"{floor * 1e3:.2f} ms", f"{floor / time:.0%}"]
    return [f"{shape_of_model(names, report)}, {what}", *times, commit_of(report)]


def shape_of_model(names: Mapping[str, str], report: Report) -> str:
    """The name of a report's model, by its architecture, and the type of its weights."""
    return f"{names[report['engine']['architecture']]} shape, {weights(report)}"


def commit_of(report: Report) -> str:
    """The measured sources."""
    return str(report["commit"])[:10]


def measured_on(report: Report) -> str:
    """The GPU, its driver and the day."""
    return f"{report['machine']['gpu']}, driver {report['versions']['driver']}, {report['date'][:10]}"


def lengths_of(report: Report) -> str:
    """The tokens of each sequence."""
    return f"{report['shape']['input_len']} tokens in, {report['shape']['output_len']} out"
