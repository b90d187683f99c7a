"""Chooses a scheme for each site of a network by its measured divergence, under a budget of bits per weight.

The choice is greedy: every site begins with the fewest bits. Then the step to more bits that reduces divergence most
per bit is taken, as long as one fits the budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_lite.errors import BuildError


@dataclass(frozen=True)
class Candidate:
    """One scheme for a site: the ``bits`` of all its weights with their scales, and the ``divergence`` it causes.

    The divergence is the KL divergence, in nats per token, of the network with only this site quantized from the
    unquantized network.
    """

    qformat: str
    bits: int
    divergence: float


@dataclass(frozen=True)
class Site:
    """The products ``names``, which get one scheme; ``candidates`` are in the order of the request."""

    names: tuple[str, ...]
    num_weights: int
    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        """The products' names, with the block that they are in only once."""
        block, _, _ = self.names[0].rpartition(".")
        own = "+".join(name.rpartition(".")[2] for name in self.names)
        return f"{block}.{own}" if block else own


@dataclass(frozen=True)
class Choice:
    """The scheme that a site gets, and the reason, for people."""

    site: Site
    candidate: Candidate
    reason: str


def check_budget(sites: Sequence[Site], budget: float) -> None:
    """Raise BuildError if the fewest bits of all sites exceed ``budget``; divergences need not be known."""
    fewest = sum(_smallest(site).bits for site in sites) / sum(site.num_weights for site in sites)
    if not budget >= fewest:
        raise BuildError(
            f"auto_quantize_bits is {budget:g}, and the formats take {fewest:.3f} bits for a weight at least, their "
            "scales included: raise auto_quantize_bits, name a format of fewer bits, or pass a larger group_size"
        )


def choose(sites: Sequence[Site], budget: float) -> list[Choice]:
    """A candidate for each site, with at most ``budget`` bits per weight on average over all sites.

    Raises BuildError as :func:`check_budget`.
    """
    check_budget(sites, budget)
    chosen = {site: Choice(site, _smallest(site), "the fewest bits; other sites gained more") for site in sites}
    left = (budget - average_bits(list(chosen.values()))) * sum(site.num_weights for site in sites)
    while steps := [step for choice in chosen.values() for step in _steps(choice, left)]:
        before, after, site = max(steps, key=_gain)
        left -= after.bits - before.bits
        chosen[site] = Choice(site, after, _reason(before, after, site))
    return list(chosen.values())


def average_bits(choices: Sequence[Choice]) -> float:
    """The average bits per weight."""
    return sum(choice.candidate.bits for choice in choices) / sum(choice.site.num_weights for choice in choices)


_Step = tuple[Candidate, Candidate, Site]


def _smallest(site: Site) -> Candidate:
    return min(site.candidates, key=lambda candidate: (candidate.bits, candidate.divergence))


def _steps(choice: Choice, left: float) -> list[_Step]:
    """Steps to candidates that take up to ``left`` more bits and have less divergence."""
    now = choice.candidate
    return [
        (now, candidate, choice.site)
        for candidate in choice.site.candidates
        if 0 < candidate.bits - now.bits <= left and candidate.divergence < now.divergence
    ]


def _gain(step: _Step) -> float:
    before, after, _ = step
    return (before.divergence - after.divergence) / (after.bits - before.bits)


def _reason(before: Candidate, after: Candidate, site: Site) -> str:
    more, less = (after.bits - before.bits) / site.num_weights, before.divergence - after.divergence
    return f"{more:.2f} bits more than {before.qformat} reduce the divergence by {less:.6f}"
