"""Makes the tables of docs/design/parallelism.md on the ways to arrange a given number of cards."""

from dataclasses import replace

from documents.parallelism.cards import H200, NETWORK, Card, machines, models_and_cards
from documents.parallelism.checks import MEASURED, MODELS, model_of
from documents.parallelism.model import Layout, fits, num_all_reduces, token_time
from documents.variants import markdown
from trtllm_lite.network.config import ModelConfig

RANKS = (1, 2, 4, 8, 16)
CONTEXT = 2048  # tokens of a request in the tables
NUM_CARDS = 8
LOADS = (1, 8, 128, 512, 2048)
LAYOUTS = (*(Layout(size, 1, NUM_CARDS // size) for size in (1, 2, 4, 8)), Layout(4, 2), Layout(1, 8))
NONE = "—"


def _times(model: ModelConfig, card: Card, requests: int) -> dict[Layout, float]:
    """Seconds between tokens in each layout of NUM_CARDS that fits."""
    machine = machines()[card.name]
    return {
        layout: token_time(model, machine, layout, requests, CONTEXT)
        for layout in LAYOUTS
        if fits(model, card.memory, layout, requests, CONTEXT)
    }


def layouts_table() -> str:
    """Tokens per second of eight of the measured cards, by layout."""
    rows = []
    for name, preset in MODELS.items():
        for requests in LOADS:
            times = _times(model_of(preset), H200, requests)
            if not times:
                continue
            best = min(times.values())
            cells = [_rate(requests, times[layout], best) if layout in times else NONE for layout in LAYOUTS]
            rows.append([name, f"{requests:,}", *cells])
    return markdown(["model", "requests", *map(str, LAYOUTS)], rows) + "\n"


def _rate(requests: int, seconds: float, best: float) -> str:
    """Tokens per second and time per token; the best of a row in bold."""
    text = f"{requests / seconds:,.0f} tok/s, {seconds * 1e3:.1f} ms"
    return f"**{text}**" if seconds == best else text


def choices_table() -> str:
    """The least number of cards, and the best layout of eight, by model, card and load."""
    rows = []
    for name, model, card in models_and_cards():
        cells = []
        least = [ranks for ranks in RANKS if fits(model, card.memory, Layout(ranks), 1, CONTEXT)]
        for requests in LOADS:
            times = _times(model, card, requests)
            best = min(times, key=lambda layout: times[layout], default=None)
            cells.append(f"{best}: {requests / times[best]:,.0f} tok/s" if best else NONE)
        rows.append([name, card.name, f"{least[0]}", *cells])
    loads = (f"{requests:,} request{'s' * (requests > 1)}" for requests in LOADS)
    return markdown(["model", "card", "least cards", *loads], rows) + "\n"


def machines_table() -> str:
    """Sixteen cards as two machines of eight, in several layouts, compared with sixteen on one NVLink."""
    rows, near, staged, apart = [], Layout(16), Layout(8, 2), Layout(8, 1, 2)
    for name, model, card in models_and_cards():
        if name == MEASURED:  # this model never needs sixteen cards
            continue
        machine = machines()[card.name]
        # A rank sends to 15 other ranks, 8 of them in the other machine.
        across = replace(machine, link=machine.link.scaled(NETWORK * 15 / 8 / machine.link.push.bytes_per_s))
        for requests in (1, 128):
            options = [(near, machine, None), (near, across, None), (staged, machine, NETWORK), (apart, machine, None)]
            times = [
                token_time(model, cards, layout, requests, CONTEXT, network)
                if fits(model, card.memory, layout, requests, CONTEXT)
                else None
                for layout, cards, network in options
            ]
            cells = [NONE if time is None else f"{time * 1e3:.1f} ms" for time in times]
            latency = (times[2] - times[1]) / num_all_reduces(model)
            cells.insert(2, f"{latency * 1e6:.0f} µs" if latency > 0 else "always")
            rows.append([name, card.name, f"{requests}", *cells])
    titles = [f"{near}, one NVLink", f"{near}, across the network", "slower than stages from", f"{staged}, across it"]
    return markdown(["model", "card", "requests", *titles, f"{apart}"], rows) + "\n"
