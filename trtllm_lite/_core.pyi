"""The C++ runtime. Raises the classes of ``trtllm_lite.errors``.

Arrays are C-contiguous and of exactly the dtypes given here: nothing is converted silently.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
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

class HomeProcess:
    """The process that made this object. What its engines stand on, threads and devices, is not there in its forks."""

    def __init__(self) -> None: ...
    def is_this(self) -> bool: ...
    def check(self) -> None:
        """Raises EngineError in a fork of the process."""

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

class CudaExecutor:
    """An engine on a GPU: its weights, KV cache, kernels and graphs.

    An EventLoop runs steps on it; its own methods expect that none does meanwhile.
    """

    def __init__(
        self, engine: Engine, *, device: int = 0, num_blocks: int = 0, library_directories: list[str] = ...
    ) -> None:
        """``num_blocks`` 0: the cache size of the manifest; ``library_directories``: where cuBLASLt may lie, too.

        Raises DeviceError (no such GPU, no driver, no cuBLASLt), EngineError (built for another GPU or cuBLASLt),
        LimitError (not enough memory).
        """

    def step(
        self,
        token_ids: NDArray[np.int32],
        seq_lens: NDArray[np.int32],
        past_lens: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        logits_indices: NDArray[np.int32],
    ) -> NDArray[np.float32]:
        """As :meth:`CpuExecutor.step`, on the GPU.

        Of a sequence whose logits are wanted, those from the first wanted row on count towards the engine's limit.
        """

    def read_block(self, block: int) -> NDArray[np.uint8]:
        """What a block of the KV cache holds: the manifest's ``bytes_per_block`` bytes.

        For each layer in turn its keys (rotated), then its values: [num_kv_heads, tokens_per_block, head_dim] of the
        cache's dtype, row-major. Raises LimitError if there is no such block.
        """

    def time_step(
        self, *, num_rows: int, num_tokens: int = 1, past_len: int = 0, repeats: int = 5
    ) -> list[tuple[str, float]]:
        """Name and seconds of each instruction of a step of ``num_rows`` sequences, ``num_tokens`` new ones each."""

    def time_products(
        self, *, num_tokens: int, above: int = 0, candidates: int = 16, repeats: int = 7, sustained: bool = False
    ) -> list[dict[str, Any]]:
        """The fastest of the first ``candidates`` cuBLASLt algorithms for each kind of product in a step.

        It computes any number of rows from that of a step of ``above`` tokens up to its own; where none does, there are
        entries for parts of these rows. None for products that have no more rows than in a step of ``above`` tokens.
        ``sustained``: as fast as they are when nothing else runs for a while, so at the card's power limit.
        The keys of an entry: dtype, out_dtype, out_features, in_features, gated, residual, bias; rows, algo
        (hexadecimal), microseconds, heuristic_microseconds (of what cuBLASLt proposes first). Raises LimitError,
        DeviceError.
        """

    def time_programs(
        self, names: Sequence[str], *, num_tokens: int, repeats: int = 7, sustained: bool = False
    ) -> list[float | None]:
        """Microseconds of programs that can carry out a step of ``num_tokens``, in turns.

        With ``sustained`` as above, and None for all but the first and those that were fastest in turns.
        Raises LimitError, DeviceError.
        """

    @property
    def cublaslt_version(self) -> int:
        """As cublasLtGetVersion says."""

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of ``weights``, ``kv_cache`` and ``workspace``."""

    @property
    def device_name(self) -> str:
        """As the driver calls it."""

def cuda_device(device: int = 0) -> dict[str, str]:
    """A GPU's ``name``, and the ``cuda_version`` (``13.0``) of its driver. Raises DeviceError."""

def cuda_device_memory(device: int = 0) -> dict[str, int]:
    """Bytes of a GPU's memory: ``free`` and ``total``. Raises DeviceError."""

class CpuExecutor:
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

MAX_PRIORITY: int
"""Priorities of requests are from -MAX_PRIORITY to MAX_PRIORITY."""
MAX_STOP_WORDS: int
MAX_STOP_WORD_LENGTH: int
"""Most stop sequences of a request, and most tokens of one; Python bounds stop strings by the same numbers."""

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
    """A generated token, the ``index``-th of its request; ``token`` None: outputs of the prompt or a beam search."""

    request_id: int
    token: int | None
    index: int
    context_logits: NDArray[np.float32] | None
    """[positions, vocab_size]; the events of a request hold them for each prompt position once, in order."""
    generation_logits: NDArray[np.float32] | None
    """[1, vocab_size]: what the token was sampled from."""
    logprobs: sampling.RowLogprobs | None
    """Of the token."""
    prompt_logprobs: list[sampling.RowLogprobs]
    """Of prompt tokens, in order, from the second on."""
    hypotheses: list[tuple[list[int], float]]
    """What a beam search found, best first: generated tokens and score. Empty but for its last event."""

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
        executor: CpuExecutor,
        *,
        max_batch_size: int,
        max_input_len: int,
        max_seq_len: int,
        max_num_tokens: int,
        num_host_blocks: int = 0,
        max_utilization: bool = False,
        enable_block_reuse: bool = False,
        enable_chunked_context: bool = True,
    ) -> None:
        """Limits may be tighter than the engine's. ``max_utilization`` admits requests beyond what the KV cache
        guarantees and preempts some if it runs out: they are computed again, or swapped to ``num_host_blocks`` blocks.
        ``enable_block_reuse``: requests share the blocks of equal prefixes. ``enable_chunked_context``: a prompt may be
        spread over several steps; without it ``max_input_len`` must not exceed ``max_num_tokens``.

        Raises LimitError for a limit beyond the engine's.
        """

    def submit(
        self,
        prompt_ids: NDArray[np.int32],
        params: sampling.SamplingParams,
        *,
        stop_sequences: Sequence[Sequence[int]] = (),
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
        sequence_index: int = 0,
        context_logits: bool = False,
        generation_logits: bool = False,
        beams: sampling.BeamSearchParams | None = None,
    ) -> int:
        """Queue a request; returns its id at once.

        With ``beams`` it is a beam search: no tokens are delivered but, just before its end, the event that has
        ``hypotheses``. It takes the places of that many requests in a batch, and no stop sequences or
        ``generation_logits``.

        ``timeout`` is in seconds; requests of a greater ``priority`` (up to MAX_PRIORITY) are served earlier; only
        requests of equal ``cache_salt`` share blocks. Requests of one seed draw different numbers if their
        ``sequence_index`` differs. Raises LimitError if it exceeds a limit, OverloadedError if too many are
        outstanding. Wrong sampling parameters end the request with an error.
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

class KvCacheBookkeeping:
    """The paged KV cache's bookkeeping alone, for tests: csrc/batching/kv_cache_manager.h states its contract.

    Sequences are known by number. Every write and every swap is a step, in flight until :meth:`end_step`. A copy is
    (kind, source block, target block), kind being ``device_to_device``, ``device_to_host`` or ``host_to_device``. A
    number that is not open, or a sequence in the wrong memory, is a ValueError or a RuntimeError.
    """

    def __init__(
        self, *, num_blocks: int, num_host_blocks: int, tokens_per_block: int, enable_block_reuse: bool
    ) -> None: ...
    def open(self, tokens: Sequence[int], salt: str) -> int:
        """A sequence of known tokens, of which cached ones (``length``) count as written."""

    def fork(self, sequence: int) -> int:
        """A second sequence of the same content."""

    def append(self, sequence: int, tokens: Sequence[int]) -> None:
        """More known tokens."""

    def write(self, sequence: int, num_tokens: int) -> list[tuple[str, int, int]] | None:
        """Makes room for the next known tokens; returns the copies to carry out first. None: blocks are missing."""

    def swap_out(self, sequence: int) -> list[tuple[str, int, int]] | None:
        """Moves a sequence to the host; None: blocks are missing there."""

    def swap_in(self, sequence: int) -> list[tuple[str, int, int]] | None:
        """Moves it back; None: blocks are missing."""

    def close(self, sequence: int) -> None: ...
    def forget(self, sequence: int) -> None:
        """No later sequence shares this one's blocks."""

    def end_step(self) -> None:
        """The oldest step in flight, if there is one, has ended."""

    def blocks(self, sequence: int) -> list[int]:
        """Of the memory that the sequence is in."""

    def length(self, sequence: int) -> int:
        """Tokens written."""

    def refcount(self, block: int) -> int:
        """Sequences that hold a device block."""

    @property
    def num_ready(self) -> int:
        """Device blocks that can be handed out now, those with cached content included."""

    @property
    def num_host_ready(self) -> int:
        """The same of host blocks."""

    @property
    def evicted_blocks(self) -> int:
        """Cached blocks given up so far."""

    def check_integrity(self) -> None:
        """Raises RuntimeError naming the first contradiction."""

class sampling:  # noqa: N801 - a module of the extension, which one stub file can only show as a class
    """The CPU device's sampler, for tests without an engine; csrc/sampling/*.h state its contract.

    Parameters and tokens out of their range raise LimitError.
    """

    MAX_STOP_TOKENS: int
    MAX_LOGIT_BIAS_ENTRIES: int
    MAX_BAD_WORDS: int
    MAX_BAD_WORD_LENGTH: int
    """Most entries of these lists of SamplingParams; most tokens of a bad word."""

    class SamplingParams:
        """What one request asks of the sampler; sampling_params.h says what the fields mean."""

        temperature: float
        top_k: int
        top_p: float
        min_p: float
        repetition_penalty: float
        presence_penalty: float
        frequency_penalty: float
        seed: int
        max_tokens: int
        min_tokens: int
        ignore_eos: bool
        end_ids: list[int]
        stop_token_ids: list[int]
        bad_words: list[list[int]]
        logit_bias: list[tuple[int, float]]
        allowed_token_ids: list[int] | None
        logprobs: int | None
        prompt_logprobs: int | None
        def __init__(self) -> None: ...
        def violations(self, vocab_size: int) -> list[str]:
            """Everything wrong with the parameters, a sentence each; empty if nothing is."""

    class StopCause(Enum):
        """Why a sequence ends with a token."""

        NONE = ...
        END_ID = ...
        STOP_TOKEN = ...
        MAX_TOKENS = ...

    class RowLogprobs:
        """Log-probabilities at one position."""

        @property
        def logprob(self) -> float:
            """Of the chosen token."""

        @property
        def rank(self) -> int:
            """Of the chosen token: 1 is the most likely."""

        @property
        def top(self) -> list[tuple[int, float]]:
            """The most likely tokens, best first."""

    class SampledToken:
        """The result of one row; ``token`` is meaningful if ``error`` is empty."""

        error: str
        token: int
        stop_cause: sampling.StopCause
        logprobs: sampling.RowLogprobs | None

    class Sampler:
        """Slots of sequences, and the draw of their next tokens."""

        def __init__(self, num_slots: int, vocab_size: int) -> None: ...
        def set_slot(
            self,
            slot: int,
            params: sampling.SamplingParams,
            prompt: Sequence[int],
            generated: Sequence[int] = (),
            sequence_index: int = 0,
        ) -> None:
            """Puts a sequence into a slot, whatever was there."""

        def clear_slot(self, slot: int) -> None: ...
        def sample_rows(self, slots: Sequence[int], logits: NDArray[np.float32]) -> list[sampling.SampledToken]:
            """The next token of each slot from its row of ``logits`` [slots, vocab_size]."""

        def prompt_logprobs(
            self, logits: NDArray[np.float32], next_tokens: Sequence[int], num_top: int
        ) -> list[sampling.RowLogprobs]:
            """Of prompt tokens: ``logits`` [len(next_tokens), vocab_size] are those of the positions before them."""

    class EarlyStopping(Enum):
        """When a search with enough finished sequences ends: beam_search.h."""

        FALSE = ...
        TRUE = ...
        NEVER = ...

    class BeamSearchParams:
        """Beside SamplingParams, what a beam search is asked for."""

        num_beams: int
        length_penalty: float
        early_stopping: sampling.EarlyStopping
        def __init__(self) -> None: ...
        def violations(self, params: sampling.SamplingParams, vocab_size: int) -> list[str]:
            """Everything wrong with a search of these parameters, a sentence each; empty if nothing is."""

    class BeamSearch:
        """One search, driven by hand."""

        def __init__(
            self,
            beams: sampling.BeamSearchParams,
            params: sampling.SamplingParams,
            prompt: Sequence[int],
            vocab_size: int,
        ) -> None: ...
        def step(self, logits: NDArray[np.float32]) -> list[tuple[int, int]]:
            """Takes ``logits`` [live beams, vocab_size]; returns (parent, token) of each beam of the next step."""

        @property
        def done(self) -> bool: ...
        def hypotheses(self) -> list[tuple[list[int], float]]:
            """Finished sequences and their scores, best first."""

    @staticmethod
    def philox4x32_10(counter: Sequence[int], key: Sequence[int]) -> list[int]:
        """Four random words."""

    @staticmethod
    def token_uniform(seed: int, token_index: int, sequence_index: int = 0) -> float:
        """The number in [0, 1) that a sequence's token is drawn with."""

    @staticmethod
    def processed(
        params: sampling.SamplingParams,
        prompt: Sequence[int],
        generated: Sequence[int],
        logits: NDArray[np.float32],
    ) -> list[float]:
        """A row of logits [vocab_size] after penalties, bias and bans."""

    @staticmethod
    def truncated(
        logits: NDArray[np.float32],
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
    ) -> tuple[list[int], list[float]]:
        """Tokens that stay in the draw, and their weights relative to the most likely one's."""
