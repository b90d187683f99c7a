"""Makes the tables of docs/design/parallelism.md, from configs/baselines and the formulas of the model."""

from documents.collectives import collectives_table
from documents.parallelism.cards import CARDS, H200, Card, machines, models_and_cards
from documents.parallelism.checks import LINK, checks_table, context_of, measured_model, rank_reports
from documents.parallelism.layouts import CONTEXT, NONE, RANKS, choices_table, layouts_table, machines_table
from documents.parallelism.model import Layout, decode_step, fits, prompt_time
from documents.variants import markdown
from trtllm_lite.network.config import ModelConfig

PROMPT, MANY = 8192, 64


def sections() -> dict[str, str]:
    """The Markdown of each generated part of the page, by name."""
    return {
        "link": collectives_table(LINK),
        "checks": checks_table(),
        "cards": cards_table(),
        "growth": growth_table(),
        "latency": latency_table(),
        "layouts": layouts_table(),
        "choices": choices_table(),
        "machines": machines_table(),
    }


def cards_table() -> str:
    """The vendor's figures of each card, and the figures that the model assumes."""
    rows = []
    for card in CARDS:
        machine = machines()[card.name]
        cells = [
            f"{card.bandwidth / 1e12:.2f} ({machine.bandwidth / 1e12:.2f})",
            f"{card.flops / 1e12:,.0f} ({machine.flops / 1e12:,.0f})",
            f"{card.link / 1e9:.0f} ({machine.link.push.bytes_per_s / 1e9:.0f})",
        ]
        rows.append([card.name, f"{card.memory / 1e9:.0f}", *cells, card.source])
    return markdown(["card", "GB", "TB/s", "TFLOPS", "NVLink GB/s a direction", "source"], rows) + "\n"


def growth_table() -> str:
    """The parts of a decode step by number of ranks, on the measured card."""
    model, machine, rows = measured_model(), machines()[H200.name], []
    measured = {
        (ranks, report["shape"]["batch_size"]): report["figures"]["inter_token_latency_s"]
        for ranks, kinds in rank_reports().items()
        for report in kinds["latency"]
    }
    (context,) = {context_of(report["shape"]) for report in rank_reports()[1]["latency"]}
    for batch in (1, 64, 256):
        alone = decode_step(model, machine, batch, context).seconds
        for ranks in RANKS:
            step = decode_step(model, machine, batch, context, ranks)
            parts = (step.weights, step.cache, step.kernels, step.all_reduce, step.all_gather, step.seconds)
            found = measured.get((ranks, batch))
            faster, cell = f"{alone / step.seconds:.1f}×", f"{found * 1e3:.2f}" if found else ""
            rows.append([f"{batch}", f"{ranks}", *(f"{part * 1e3:.2f}" for part in parts), faster, cell])
    titles = ["batch", "ranks", "weights", "KV cache", "kernels", "AllReduce", "AllGather", "sum, ms", "faster"]
    return markdown([*titles, "measured, ms"], rows) + "\n"


def latency_table() -> str:
    """Times by model, card and number of ranks."""
    rows = []
    for name, model, card in models_and_cards():
        cells = [_latencies(model, card, ranks) for ranks in RANKS]
        rows.append([name, card.name, *cells])
    return markdown(["model", "card", *map(str, map(Layout, RANKS))], rows) + "\n"


def _latencies(model: ModelConfig, card: Card, ranks: int) -> str:
    """Milliseconds per token of one request, and of MANY, and up to the first token."""
    machine, texts = machines()[card.name], []
    for batch in (1, MANY):
        fit = fits(model, card.memory, Layout(ranks), batch, CONTEXT)
        texts.append(f"{decode_step(model, machine, batch, CONTEXT, ranks).seconds * 1e3:.1f}" if fit else NONE)
    fit = fits(model, card.memory, Layout(ranks), 1, PROMPT)
    texts.append(f"{prompt_time(model, machine, PROMPT, ranks) * 1e3:,.0f}" if fit else NONE)
    return NONE if set(texts) == {NONE} else " / ".join(texts)
