"""Makes workloads from a seed, without a data set: the lengths of requests, and when they arrive."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.bench.arrivals import arrival_times, check_arrivals
from trtllm_lite.bench.lengths import Lengths, parse_lengths
from trtllm_lite.errors import ArgumentError, LimitError, shown
from trtllm_lite.runtime.lora.request import LoRARequest

_MAX_PRIORITY = 100


class LengthLimits(Protocol):
    """Upper bounds of lengths in tokens, such as ``RunnerLimits``; ``cache_len`` is the longest that memory holds."""

    @property
    def max_input_len(self) -> int:
        """The longest prompt."""

    @property
    def max_seq_len(self) -> int:
        """The longest prompt and output together."""

    @property
    def cache_len(self) -> int:
        """The longest prompt and output together that the KV cache holds."""


@dataclass(frozen=True)
class PlannedRequest:
    """A request of a workload: ``prompt_ids`` int32[prompt_len] are sent ``arrival_s`` seconds after the start.

    Exactly ``output_len`` tokens are generated, because end ids are ignored: ``only_token`` alone if it is given, else
    the likeliest; with text if ``detokenize``. ``lora`` is the request's adapter. With random weights the likeliest
    token depends on rounding, and so on the number of rows in a step.
    """

    arrival_s: float
    prompt_ids: NDArray[np.int32]
    output_len: int
    priority: int = 0
    only_token: int | None = None
    lora: LoRARequest | None = None
    detokenize: bool = True

    @property
    def prompt_len(self) -> int:
        """The number of tokens of the prompt."""
        return len(self.prompt_ids)


@dataclass(frozen=True)
class Workload:
    """The requests of a measurement, described by the options of the command line. Equal workloads give equal requests.

    ``input_len`` and ``output_len``: see ``lengths.FORMS``. A share ``prefix_share`` of the prompts begins with the
    same ``prefix_len`` tokens, in front of ``input_len`` tokens of their own. ``priorities`` is one priority, or
    several with their weights (``0:9,50:1``). At most ``concurrency`` requests are outstanding: others wait unsent.
    With ``detokenize`` a token counts as received when its text is, else when its id is.
    """

    num_requests: int = 32
    input_len: str = "64:128"
    output_len: str = "64:128"
    arrival: str = "all"
    request_rate: float | None = None
    burstiness: float | None = None
    concurrency: int | None = None
    prefix_len: int = 0
    prefix_share: float = 1.0
    priorities: str = "0"
    seed: int = 0
    detokenize: bool = True

    def __post_init__(self) -> None:
        for name, least in (("num_requests", 1), ("concurrency", 1), ("prefix_len", 0), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ArgumentError(f"{name} is {value}: expected at least {least}")
        if not 0 <= self.prefix_share <= 1:
            raise ArgumentError(f"prefix_share is {self.prefix_share}: expected 0 to 1")
        check_arrivals(self.arrival, self.request_rate, self.burstiness)
        parse_lengths("input_len", self.input_len)
        parse_lengths("output_len", self.output_len)
        _parse_priorities(self.priorities)

    def requests(self, vocab_size: int, limits: LengthLimits) -> list[PlannedRequest]:
        """The requests in order of arrival.

        Arrivals, lengths, prefixes and priorities have separate random numbers, so that a change of one keeps the
        others. ``limits`` bound distributions without an upper end. Raises LimitError if a fixed or uniform length can
        exceed them.
        """
        streams = np.random.default_rng(self.seed).spawn(5)
        arrivals = arrival_times(self.arrival, self.request_rate, self.burstiness, self.num_requests, streams[0])
        prefix = streams[1].integers(0, vocab_size, self.prefix_len, dtype=np.int32)
        sharing = streams[1].random(self.num_requests) < self.prefix_share
        lengths = self._lengths(limits, streams[2])
        prompts = [streams[3].integers(0, vocab_size, prompt_len, dtype=np.int32) for prompt_len, _ in lengths]
        values, weights = _parse_priorities(self.priorities)
        priorities = streams[4].choice(values, self.num_requests, p=weights)
        return [
            PlannedRequest(
                arrival_s=float(arrivals[row]),
                prompt_ids=np.concatenate([prefix, prompts[row]]) if sharing[row] else prompts[row],
                output_len=lengths[row][1],
                priority=int(priorities[row]),
                detokenize=self.detokenize,
            )
            for row in range(self.num_requests)
        ]

    def _lengths(self, limits: LengthLimits, generator: np.random.Generator) -> list[tuple[int, int]]:
        """Prompt tokens, without the prefix, and output tokens of each request; all leave room for the prefix."""
        inputs, outputs = parse_lengths("input_len", self.input_len), parse_lengths("output_len", self.output_len)
        self._check_lengths(_least_room(inputs), _least_room(outputs), limits)
        seq_len = min(limits.max_seq_len, limits.cache_len)
        own_len = min(limits.max_input_len, seq_len - _least_room(outputs)) - self.prefix_len
        lengths = []
        for _ in range(self.num_requests):
            prompt_len = inputs.draw(generator, own_len)
            lengths.append((prompt_len, outputs.draw(generator, seq_len - self.prefix_len - prompt_len)))
        return lengths

    def _check_lengths(self, input_len: int, output_len: int, limits: LengthLimits) -> None:
        """Raise LimitError if prompts and outputs of these lengths can exceed a limit."""
        prompt = ({"prefix_len": self.prefix_len} if self.prefix_len else {}) | {"input_len": input_len}
        whole, cache_len = prompt | {"output_len": output_len}, limits.cache_len
        for lengths, name, most in (
            (whole, "max_seq_len", limits.max_seq_len),
            (prompt, "max_input_len", limits.max_input_len),
        ):
            remedy = f"build the engine, or start the server, with a larger {name}"
            _check_sum(lengths, most, f"{name} {most}", remedy)
        remedy = "give the KV cache more room (max_tokens_in_paged_kv_cache, kv_cache_free_gpu_memory_fraction)"
        _check_sum(whole, cache_len, f"the {cache_len} tokens of a sequence that the KV cache holds", remedy)


@dataclass(frozen=True)
class AdaptedWorkload(Workload):
    """A workload whose requests have ``num_loras`` made-up adapters of rank ``lora_rank`` in turn."""

    num_loras: int = 1
    lora_rank: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_loras", "lora_rank"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} is {getattr(self, name)}: expected at least 1")

    def requests(self, vocab_size: int, limits: LengthLimits) -> list[PlannedRequest]:
        """Implements :meth:`Workload.requests`, each with its adapter."""
        return in_turn(super().requests(vocab_size, limits), self.num_loras)


def in_turn(requests: Sequence[PlannedRequest], num_loras: int) -> list[PlannedRequest]:
    """``requests`` with the made-up adapters 0 to ``num_loras`` - 1 in turn."""
    return [replace(request, lora=lora_of(row % num_loras)) for row, request in enumerate(requests)]


def lora_of(number: int) -> LoRARequest:
    """The made-up adapter of a number, which is in no directory."""
    return LoRARequest(f"made up {number}", number + 1, "made up")


def _least_room(lengths: Lengths) -> int:
    """Tokens to keep free for a draw: the longest length, or the shortest if the distribution has no upper end."""
    return lengths.shortest if lengths.longest is None else lengths.longest


def _check_sum(lengths: Mapping[str, int], most: int, limit: str, remedy: str) -> None:
    """Raise LimitError if ``lengths``, by the names of their options, exceed ``most`` together."""
    if (total := sum(lengths.values())) > most:
        takes, lower = ("takes", "it") if len(lengths) == 1 else ("take", "one of them")
        of_each = "" if len(lengths) == 1 else f" ({' + '.join(map(str, lengths.values()))})"
        needs = f"{' + '.join(lengths)} {takes} {total} tokens{of_each}"
        raise LimitError(f"{needs}, above {limit}: lower {lower}, or {remedy}")


def _parse_priorities(text: str) -> tuple[list[int], NDArray[np.float64]]:
    """Priorities and their probabilities."""
    try:
        pairs = [entry.split(":") for entry in text.split(",")]
        values = [int(pair[0]) for pair in pairs]
        weights = np.array([float(pair[1]) if len(pair) > 1 else 1.0 for pair in pairs])
    except ValueError:
        values, weights = [], np.zeros(0)
    valid = values and all(abs(value) <= _MAX_PRIORITY for value in values) and (weights > 0).all()
    if not valid or not np.isfinite(weights).all():
        raise ArgumentError(
            f"priorities is {shown(text)}: expected priorities from -{_MAX_PRIORITY} to {_MAX_PRIORITY}, several with "
            "weights, as in 0:9,50:1"
        )
    return values, weights / weights.sum()
