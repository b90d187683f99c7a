"""Declares the records of single steps: their times and tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class StepRecord(NamedTuple):
    """A step, which begins with the results of the step before it, or after idle time, and ends with its own results.

    ``begin`` and ``end`` are instants of ``time.perf_counter``. The event loop computed for ``host_seconds`` between
    them; ``compute_seconds`` were measured on the device (0 if unknown). ``num_decode_tokens`` of the ``num_tokens``
    continue answers, the others are of prompts.
    """

    begin: float
    end: float
    host_seconds: float
    compute_seconds: float
    num_rows: int
    num_tokens: int
    num_decode_tokens: int


@dataclass(frozen=True)
class RecordedSteps:
    """Steps in their order; ``num_left_out`` counts the later steps, for which there was no room."""

    steps: Sequence[StepRecord] = ()
    num_left_out: int = 0
