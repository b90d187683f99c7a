"""The C++ runtime. Raises the classes of ``trtllm_lite.errors``.

Arrays are C-contiguous and of exactly the dtypes given here: nothing is converted silently.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

SCRATCH_BYTES_PER_THREAD: int
"""Bytes of scratch memory that each thread of an executor owns."""

def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C (RFC 3720) of ``data`` after data whose checksum is ``crc``. The GIL is released."""

def supported_isas() -> list[str]:
    """Instruction sets that this build has kernels for and this machine can execute, best first."""

def resolve_num_threads(num_threads: int = 0) -> int:
    """``num_threads``, or for 0 the number of cores this process may use. Raises ArgumentError if it is absurd."""

class Engine:
    """An engine file, mapped read-only and checked from the first byte to the last.

    Structure, versions, all checksums, and the plan against the operators' schemas: what is accepted is safe to
    execute, whoever wrote it.
    """

    def __init__(self, path: str) -> None:
        """Raises EngineError: path, what was expected, what was found, remedy."""

    @property
    def manifest(self) -> str:
        """The manifest as JSON."""

    @property
    def plan(self) -> str:
        """The plan as JSON."""

    @property
    def file_bytes(self) -> int:
        """Size of the file."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, in the file and in memory."""

class Executor:
    """Executes the plan of an engine, and owns its KV cache and workspace. Threads may share it: steps take turns."""

    def __init__(self, engine: Engine, *, num_threads: int = 0, num_blocks: int = 0, isa: str = "auto") -> None:
        """``num_threads`` 0: every core this process may use; ``num_blocks`` 0: the cache size of the manifest.

        Raises ArgumentError or LimitError for options that make no sense or do not fit in memory, EngineError if this
        build lacks a kernel.
        """

    def step(
        self,
        token_ids: NDArray[np.int32],
        seq_lens: NDArray[np.int32],
        past_lens: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        logits_indices: NDArray[np.int32],
    ) -> NDArray[np.float32]:
        """Run all new tokens of a batch through the model; the GIL is released.

        ``token_ids`` [T]: the new tokens of all sequences, one sequence after the other; ``seq_lens`` [S]: how many
        each has, at least 1, T in all; ``past_lens`` [S]: how many the cache holds already; ``block_tables``
        [S, columns]: cache blocks of each sequence, entries past its length are ignored; ``logits_indices`` [L]: rows
        of ``token_ids`` whose logits are wanted. Returns logits [L, vocab_size] in memory of their own.

        Raises LimitError before anything is computed if a size or value is beyond its limit.
        """

    @property
    def memory(self) -> dict[str, int]:
        """Bytes reserved: ``weights``, ``kv_cache``, ``workspace`` (arena, step inputs, scratch of all threads)."""

    @property
    def num_threads(self) -> int:
        """Threads that execute a step."""

    @property
    def isa(self) -> str:
        """The instruction set of the kernels."""

sampling: ModuleType
"""The CPU device's sampler, for tests without an engine; csrc/sampling/*.h state its contract.

Classes ``SamplingParams``, ``Sampler``, ``SampledToken``, ``RowLogprobs``, ``BeamSearchParams``, ``BeamSearch``, enums
``StopCause`` and ``EarlyStopping``, functions ``processed``, ``truncated``, ``philox4x32_10`` and ``token_uniform``.
Parameters and tokens out of their range raise LimitError.
"""

class FinishReason(Enum):
    """Why a request ended."""

    END_ID = ...
    STOP_SEQUENCE = ...
    LENGTH = ...
    CANCELLED = ...
    TIMED_OUT = ...
    ERROR = ...

class RequestTimings:
    """Seconds are from submission, ``seconds_per_token`` a mean over the tokens after the first."""

    queue_seconds: float
    first_token_seconds: float
    seconds_per_token: float
    total_seconds: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_preemptions: int

class TokenEvent:
    """A generated token, the ``index``-th of its request; ``token`` None: outputs of prompt positions only."""

    request_id: int
    token: int | None
    index: int
    context_logits: NDArray[np.float32] | None
    """[positions, vocab_size]; the events of a request hold them for each prompt position once, in order."""
    generation_logits: NDArray[np.float32] | None
    """[1, vocab_size]: what the token was sampled from."""
    logprobs: Any
    """``sampling.RowLogprobs`` of the token, or None."""
    prompt_logprobs: list[Any]
    """``sampling.RowLogprobs`` of prompt tokens, in order, from the second on."""

class RequestEnd:
    """The last event of every request. ``message`` says what went wrong if the reason is ERROR."""

    request_id: int
    reason: FinishReason
    message: str
    timings: RequestTimings

class EventLoop:
    """In-flight batching over an executor, on threads of its own. Any thread may submit and cancel; one polls.

    Steps of other callers of the executor take turns with the loop's, but would overwrite its KV cache.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        max_batch_size: int,
        max_input_len: int,
        max_seq_len: int,
        max_num_tokens: int,
        num_host_blocks: int = 0,
        max_utilization: bool = False,
        enable_block_reuse: bool = False,
    ) -> None:
        """Limits may be tighter than the engine's. ``max_utilization`` admits requests beyond what the KV cache
        guarantees and preempts some if it runs out: they are computed again, or swapped to ``num_host_blocks`` blocks.
        ``enable_block_reuse``: requests share the blocks of equal prefixes.

        Raises LimitError for a limit beyond the engine's.
        """

    def submit(
        self,
        prompt_ids: NDArray[np.int32],
        params: Any,
        *,
        stop_sequences: Sequence[Sequence[int]] = (),
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
        context_logits: bool = False,
        generation_logits: bool = False,
    ) -> int:
        """Queue a request with its ``sampling.SamplingParams``; returns its id at once.

        ``timeout`` is in seconds; requests of a greater ``priority`` (-100 to 100) are served earlier; only requests of
        equal ``cache_salt`` share blocks. Raises LimitError if it exceeds a limit, or too many are outstanding. Wrong
        sampling parameters end the request with an error.
        """

    def cancel(self, request_id: int) -> bool:
        """End a request within a step; False if its end has been polled already."""

    def poll(self, timeout: float) -> tuple[list[TokenEvent], list[RequestEnd]] | None:
        """Events since the last call, waiting for one at most ``timeout`` seconds; the GIL is released.

        Tokens come in order, and all of a request's before, or together with, its end.

        None: the loop is shut down and every event has been delivered.
        """

    def stats(self) -> dict[str, int | float]:
        """Counts of requests, blocks, tokens, steps and preemptions, and recent means of seconds per step."""

    def shut_down(self, *, drain: bool = True) -> None:
        """Accept no more requests; let the others run to their end, or cancel them. Returns at once."""

def run_kernel(
    op: str,
    inputs: Sequence[NDArray | None],
    outputs: Sequence[NDArray | None],
    attributes: Mapping[str, float],
    layouts: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    isa: str = "auto",
    num_threads: int = 0,
) -> None:
    """Run one kernel on arrays after the engine's schema check; outputs are written in place. For tests.

    ``layouts`` and ``dtypes`` are per input; bfloat16 arrays come as uint16. A packed weight's logical extent is taken
    from the other operands, or else its padding counts. Values of int32 inputs are not checked.
    """

def time_kernel(
    op: str,
    inputs: Sequence[NDArray | None],
    outputs: Sequence[NDArray | None],
    attributes: Mapping[str, float],
    layouts: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    isa: str = "auto",
    num_threads: int = 0,
    *,
    repeats: int,
    sweep_bytes: int,
) -> list[float]:
    """Seconds of each of ``repeats`` runs of a kernel, each after ``sweep_bytes`` of other memory have been read."""
