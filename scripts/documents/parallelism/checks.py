"""Fits the model of several GPUs to measurements on one, and checks it against measurements on several."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from documents.collectives import fit_link
from documents.parallelism.model import Kernels, Machine, decode_step, prompt_time
from documents.variants import markdown, variant
from trtllm_lite.convert import open_model_config
from trtllm_lite.network.config import ModelConfig

Report = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
BASELINES = ROOT / "configs" / "baselines"
RANKS, LINK, ONE_CARD = (BASELINES / f"{kind}nvidia-h200.json" for kind in ("ranks-", "collectives-", ""))
MODELS = {name: f"llama-3.1-{name.lower()}" for name in ("8B", "70B", "405B")}
MEASURED = "8B"  # the model whose engines of several ranks were measured
FULL = "full_prec"
OTHERS = {"1B": ("llama-3.2-1b", FULL), "70B": (MODELS["70B"], "fp8")}  # models measured on one card
LEAST_OUTPUT_LEN = 64  # reports with fewer generated tokens measure the first token


@cache
def model_of(preset: str) -> ModelConfig:
    """The sizes of a model of configs/models."""
    return open_model_config(ROOT / "configs" / "models" / f"{preset}.json").config


def measured_model() -> ModelConfig:
    """The model whose engines were measured on several cards."""
    return model_of(MODELS[MEASURED])


def rank_reports() -> dict[int, dict[str, list[Report]]]:
    """The reports by number of ranks and kind, in the form of ``measure_ranks.sh``."""
    return {int(ranks): kinds for ranks, kinds in json.loads(RANKS.read_text()).items()}


def fit_machine() -> Machine:
    """The measured card, from the reports of one card, and the link between two."""
    one = rank_reports()[1]
    (first,) = one["first"]
    bandwidth, flops = first["terms"]["memory_bandwidth"] * 1e9, first["terms"]["peak_tflops"] * 1e12
    share = first["figures"]["fraction_of_first_token_floor"]
    return Machine(bandwidth, flops, share, _fit_kernels(one["latency"]), fit_link(LINK))


def _fit_kernels(reports: list[Report]) -> Kernels:
    """Fit step times beyond their floors, by least squares of relative errors."""
    model = measured_model()
    seconds = np.array([report["figures"]["inter_token_latency_s"] for report in reports])
    floors = np.array([report["figures"]["floor_inter_token_latency_s"] for report in reports])
    values = np.array([float(report["shape"]["batch_size"] * model.hidden_size) for report in reports])
    columns = np.stack([np.ones_like(seconds), values], 1) * model.num_hidden_layers
    per_layer, per_value = np.linalg.lstsq(columns / seconds[:, None], (seconds - floors) / seconds)[0]
    return Kernels(float(per_layer), float(per_value))


def context_of(shape: Report) -> float:
    """The mean number of tokens that a decode step attends to."""
    return float(shape["input_len"]) + float(shape["output_len"]) / 2


def workload_time(model: ModelConfig, machine: Machine, report: Report, tp_size: int) -> float:
    """Seconds of all requests of a report of throughput, ``max_batch_size`` at a time."""
    shape, most = report["shape"], report["engine"]["limits"]["max_batch_size"]
    requests, prompt, output = (int(shape[name]) for name in ("num_requests", "input_len", "output_len"))
    batches = [most] * (requests // most) + [requests % most] * (requests % most > 0)
    steps = (decode_step(model, machine, rows, context_of(shape), tp_size).seconds for rows in batches)
    return prompt_time(model, machine, prompt, tp_size, requests) + (output - 1) * sum(steps)


@dataclass(frozen=True)
class Check:
    """A measured figure, in seconds or tokens per second, and the model's value."""

    title: str
    cards: str
    measured: float
    modelled: float
    is_rate: bool = False

    def cells(self) -> list[str]:
        texts = [f"{x:,.0f} tok/s" if self.is_rate else f"{x * 1e3:,.2f} ms" for x in (self.measured, self.modelled)]
        return [self.title, self.cards, *texts, f"{self.modelled / self.measured - 1:+z.0%}"]


def checks_table() -> str:
    """The Markdown of measurements beside the model's values."""
    machine = fit_machine()
    checks = [check for ranks, kinds in sorted(rank_reports().items()) for check in _of_ranks(machine, ranks, kinds)]
    rows = [check.cells() for check in (*checks, *_other_shapes(machine))]
    return markdown(("", "cards", "measured", "modelled", "deviation"), rows) + "\n"


def _of_ranks(machine: Machine, ranks: int, kinds: dict[str, list[Report]]) -> Iterator[Check]:
    model, cards = measured_model(), "one card" if ranks == 1 else f"TP {ranks}"
    for report in kinds["latency"]:
        rows, measured = report["shape"]["batch_size"], report["figures"]["inter_token_latency_s"]
        modelled = decode_step(model, machine, rows, context_of(report["shape"]), ranks).seconds
        yield Check(f"{MEASURED}, bfloat16, batch {rows}", cards, measured, modelled)
    for report in kinds["first"]:
        length, measured = report["shape"]["input_len"], report["figures"]["time_to_first_token_s"]
        yield Check(
            f"{MEASURED}, first token of {length:,}", cards, measured, prompt_time(model, machine, length, ranks)
        )
    for report in kinds["throughput"]:
        shape, figures = report["shape"], report["figures"]
        title = f"{MEASURED}, {shape['input_len']} in, {shape['output_len']} out, {shape['num_requests']} requests"
        modelled = figures["output_tokens"] / workload_time(model, machine, report, ranks)
        yield Check(title, cards, figures["output_tokens_per_s"], modelled, is_rate=True)


def _other_shapes(machine: Machine) -> Iterator[Check]:
    """Engines of other models on one card, with the report's floor and the model's time of kernels."""
    for report in json.loads(ONE_CARD.read_text()):
        engine, shape, figures = report["engine"], report["shape"], report["figures"]
        if report["benchmark"] != "latency" or variant(report) or shape["output_len"] < LEAST_OUTPUT_LEN:
            continue
        for name, (preset, qformat) in OTHERS.items():
            model, rows = model_of(preset), shape["batch_size"]
            if (engine["hidden_size"], engine.get("qformat", FULL)) == (model.hidden_size, qformat):
                modelled = figures["floor_inter_token_latency_s"] + machine.kernels.time(model, rows, 1)
                title = f"{name}, {'bfloat16' if qformat == FULL else qformat}, batch {rows}"
                yield Check(title, "one card", figures["inter_token_latency_s"], modelled)
