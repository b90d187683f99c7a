"""Counts tokens per second and requests under way over the time of a run, in equal intervals."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trtllm_lite.bench.figures import RequestRecord

_INTERVALS = 60


def timeline(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """The run of ``records`` in intervals of ``interval_s`` seconds from its start.

    There is a number for each interval: ``output_tokens_per_s``, and ``running``, the requests that had been sent, and
    had not ended, in the middle of the interval. If chunks came, each is taken to have an equal part of its request's
    tokens.
    """
    end = max(record.token_times_s[-1] for record in records)
    width = math.nextafter(end, math.inf) / _INTERVALS
    edges = np.arange(_INTERVALS + 1) * width
    times = np.concatenate([record.token_times_s for record in records])
    tokens = np.concatenate(
        [np.full(len(one.token_times_s), one.output_len / len(one.token_times_s)) for one in records]
    )
    counts, _ = np.histogram(times, edges, weights=tokens)
    middles = (np.arange(_INTERVALS) + 0.5) * width
    spans = np.array([(record.sent_s, record.token_times_s[-1]) for record in records])
    running = ((spans[:, :1] <= middles) & (middles < spans[:, 1:])).sum(axis=0)
    return {"interval_s": width, "output_tokens_per_s": (counts / width).tolist(), "running": running.tolist()}
