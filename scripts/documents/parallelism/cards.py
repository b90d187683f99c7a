"""Describes GPUs by their vendors' figures, and assumes that each reaches the shares of them that the H200 reaches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from documents.parallelism.checks import MODELS, fit_machine, model_of
from documents.parallelism.model import Machine
from trtllm_lite.network.config import ModelConfig


@dataclass(frozen=True)
class Card:
    """A GPU: bytes of ``memory``, its ``bandwidth`` in bytes per second, and dense bfloat16 ``flops`` per second.

    ``link`` is NVLink's bytes per second in one direction.
    """

    name: str
    memory: float
    bandwidth: float
    flops: float
    link: float
    source: str


H200 = Card("H200", 141e9, 4.8e12, 989e12, 450e9, "NVIDIA H200 Tensor Core GPU datasheet, SXM")
CARDS = (
    Card("H100", 80e9, 3.35e12, 989e12, 450e9, "NVIDIA H100 Tensor Core GPU datasheet, SXM"),
    H200,
    Card("B200", 180e9, 8e12, 2250e12, 900e9, "NVIDIA DGX B200 datasheet, figures of eight cards divided by 8"),
)
# The speed of a card's network adapter: 400 Gb/s (NVIDIA ConnectX-7 datasheet).
NETWORK = 50e9


def machine_of(card: Card, measured: Machine) -> Machine:
    """Cards that reach the same shares of their figures as the ``measured`` H200; latencies are the H200's."""
    bandwidth, flops = measured.bandwidth * card.bandwidth / H200.bandwidth, measured.flops * card.flops / H200.flops
    return replace(measured, bandwidth=bandwidth, flops=flops, link=measured.link.scaled(card.link / H200.link))


@cache
def machines() -> dict[str, Machine]:
    """The machine that the model assumes for each card, by name."""
    measured = fit_machine()
    return {card.name: machine_of(card, measured) for card in CARDS}


def models_and_cards() -> Iterator[tuple[str, ModelConfig, Card]]:
    """The combinations in the page's tables: each model, with its name, on each card."""
    for name, preset in MODELS.items():
        for card in CARDS:
            yield name, model_of(preset), card
