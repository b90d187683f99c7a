"""Parses the timings in the reasons of tactics: ``fastest on NVIDIA H200: 64 rows 1.5 us (2 us by cublaslt)``."""

import re
from dataclasses import dataclass

_TIMING = re.compile(
    r"(?:(?P<lead>.*?): )?(?P<rows>\d{1,9}) rows (?P<time>\d{1,9}(?:\.\d{1,9})?) us(?: \((?P<others>.*)\))?", re.DOTALL
)


@dataclass(frozen=True)
class Timing:
    """The time of the chosen tactic for products of ``rows`` rows; ``others`` are the times of alternatives."""

    rows: int
    microseconds: float
    others: str


@dataclass(frozen=True)
class Series:
    """Timings of one device, which ``lead`` names: ``measured on NVIDIA H200``."""

    lead: str
    timings: tuple[Timing, ...]


@dataclass(frozen=True)
class Reason:
    """The parts of a reason: ``words``, and timings."""

    words: str
    series: tuple[Series, ...]


def read_reason(text: str) -> Reason:
    """The parts of ``text``; text that is not recognised stays among the words."""
    words: list[str] = []
    leads: list[str] = []
    timings: list[list[Timing]] = []
    for part in text.split("; "):
        match = _TIMING.fullmatch(part)
        if match is None or (match["lead"] is None and not leads):
            words.append(part)
            continue
        if match["lead"] is not None:
            leads.append(match["lead"])
            timings.append([])
        timings[-1].append(Timing(int(match["rows"]), float(match["time"]), match["others"] or ""))
    return Reason("; ".join(words), tuple(Series(*pair) for pair in zip(leads, map(tuple, timings), strict=True)))
