"""
Parts of the C++ runtime that only tests and ``scripts/bench_kernels.py`` drive by hand.

Built with the CMake option ``TRTLLM_LITE_TESTING``, as ``scripts/test.sh`` does; no part of a wheel. Types and
errors are those of ``_core``.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

import trtllm_lite._core
import trtllm_lite._core.sampling

def supported_isas() -> list[str]:
    """
    Instruction sets that this build has kernels for and this machine can execute, best first.
    """

def time_kernel(
    op: str,
    inputs: Sequence[Annotated[NDArray, dict(order="C", device="cpu")] | None],
    outputs: Sequence[Annotated[NDArray, dict(order="C", device="cpu")] | None],
    attributes: dict[str, float | str],
    layouts: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    isa: str = "auto",
    num_threads: int = 0,
    product_dtype: str = "float32",
    *,
    repeats: int,
    sweep_bytes: int,
) -> list[float]:
    """
    Seconds of each of ``repeats`` runs of a kernel, each after ``sweep_bytes`` of other memory have been
    read.
    """

def read_block(
    executor: trtllm_lite._core.CudaExecutor, block: int
) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """
    The contents of a block of the KV cache: the manifest's ``bytes_per_block`` bytes.

    For each layer in turn its keys (rotated), then its values: [num_kv_heads, tokens_per_block, head_dim] of the
    cache's dtype, row-major. Raises LimitError if there is no such block.
    """

class KvCacheBookkeeping:
    """
    The paged KV cache's bookkeeping alone, for tests: csrc/caches/kv_cache_manager.h states its contract.

    Sequences are identified by number. Every write, every swap and every opening that copies is a step, in flight
    until :meth:`end_step`. A copy is (kind, source block, target block), kind being ``device_to_device``, ``device_to_host`` or
    ``host_to_device``. A number of no open sequence, or a sequence in the wrong memory, raises ValueError or
    RuntimeError.
    """

    def __init__(
        self, *, num_blocks: int, num_host_blocks: int, tokens_per_block: int, enable_block_reuse: bool
    ) -> None: ...
    def open(self, tokens: Sequence[int], salt: str) -> tuple[int, list[tuple[str, int, int]]]:
        """
        Open a sequence of known tokens; those found in the cache count as written (``length``). Returns its number and the copies to carry out first.
        """

    def fork(self, sequence: int) -> int:
        """Open another sequence with the content of ``sequence``."""

    def append(self, sequence: int, tokens: Sequence[int]) -> None:
        """Add known tokens."""

    def write(self, sequence: int, num_tokens: int) -> list[tuple[str, int, int]] | None:
        """
        Makes room for the next known tokens; returns the copies to carry out first. None: blocks are missing.
        """

    def swap_out(self, sequence: int) -> list[tuple[str, int, int]] | None:
        """Moves a sequence to the host; None: blocks are missing there."""

    def swap_in(self, sequence: int) -> list[tuple[str, int, int]] | None:
        """Moves a sequence back to the device; None: blocks are missing."""

    def close(self, sequence: int) -> None: ...
    def forget(self, sequence: int) -> None:
        """Keep later sequences from sharing this one's blocks."""

    def end_step(self) -> None:
        """End the oldest step in flight, if there is one."""

    def blocks(self, sequence: int) -> list[int]:
        """The sequence's blocks, in the memory that the sequence is in."""

    def length(self, sequence: int) -> int:
        """The number of written tokens."""

    def refcount(self, block: int) -> int:
        """The number of sequences that hold a device block."""

    @property
    def num_ready(self) -> int:
        """
        Device blocks that can be handed out now, those with cached content included.
        """

    @property
    def num_host_ready(self) -> int:
        """
        Host blocks that can be handed out now, those with cached content included.
        """

    @property
    def evicted_blocks(self) -> int:
        """Cached blocks given up so far."""

    def check_integrity(self) -> None:
        """Raises RuntimeError naming the first contradiction."""

class PacedExecutor(trtllm_lite._core.DeviceExecutor):
    """
    Computes nothing: each step takes ``step_seconds``, and each sampling row gets a random token.
    """

    def __init__(self, engine: trtllm_lite._core.Engine, *, num_blocks: int, step_seconds: float) -> None: ...

def stalling_pipeline(
    ranks: Sequence[trtllm_lite._core.Engine], *, rank: int, collective: int, timeout: float
) -> trtllm_lite._core.CpuPipeline:
    """
    Two stages of a CPU engine, the second of which has ranks like those of ``stalling_group``.
    """

def stalling_group(
    ranks: Sequence[trtllm_lite._core.Engine], *, rank: int, collective: int, timeout: float
) -> trtllm_lite._core.CpuGroup:
    """
    The ranks of a CPU engine with a thread each; ``rank`` never reaches collective number ``collective``
    of a step.

    The other ranks wait ``timeout`` seconds for it.
    """

class SampledToken:
    """The result of one row; ``token`` is meaningful if ``error`` is empty."""

    @property
    def error(self) -> str: ...
    @property
    def token(self) -> int: ...
    @property
    def logprobs(self) -> trtllm_lite._core.sampling.RowLogprobs | None: ...

def philox4x32_10(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Four random 32-bit words."""

def token_uniform(seed: int, token_index: int, sequence_index: int = 0) -> float:
    """The random number in [0, 1) that selects a sequence's token."""

def processed(
    params: trtllm_lite._core.sampling.SamplingParams,
    prompt: Sequence[int],
    generated: Sequence[int],
    logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
) -> list[float]:
    """A row of logits [vocab_size] after penalties, bias and bans."""

def truncated(
    logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    params: trtllm_lite._core.sampling.SamplingParams,
) -> tuple[list[int], list[float]]:
    """
    Tokens that stay in the draw, and their weights relative to the most likely one's.
    """

class Sampler:
    """Slots of sequences, and the sampling of their next tokens."""

    def __init__(self, num_slots: int, vocab_size: int) -> None: ...
    def set_slot(
        self,
        slot: int,
        params: trtllm_lite._core.sampling.SamplingParams,
        prompt: Sequence[int],
        generated: Sequence[int] = [],
        sequence_index: int = 0,
    ) -> None:
        """Puts a sequence into a slot, in place of any sequence there."""

    def clear_slot(self, slot: int) -> None: ...
    def sample_rows(
        self,
        slots: Sequence[int],
        logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    ) -> list[SampledToken]:
        """
        The next token of each slot from its row of ``logits`` [slots, vocab_size].
        """

    def prompt_logprobs(
        self,
        logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        next_tokens: Sequence[int],
        num_top: int,
    ) -> list[trtllm_lite._core.sampling.RowLogprobs]:
        """
        Log probabilities of prompt tokens; ``logits`` [len(next_tokens), vocab_size] are those of the
        positions before.
        """

def finish_reason(
    params: trtllm_lite._core.sampling.SamplingParams,
    prompt: Sequence[int],
    generated: Sequence[int],
    stop_sequences: Sequence[Sequence[int]] = [],
) -> trtllm_lite._core.FinishReason | None:
    """
    The reason why the event loop ends a request with the newest ``generated`` token, or None.
    """

def adapter_matrices(adapter: trtllm_lite._core.Adapter) -> list[tuple[NDArray, NDArray] | None]:
    """
    Copies of an adapter's matrices for each projection: nothing, or A and B with the scale in B.

    For CPUs that is float32 A [rank, in] and B transposed [rank, out], for GPUs A [rank, in] and B [out, rank] of
    16-bit elements, as uint16.
    """

class BeamSearch:
    """One search, driven by hand."""

    def __init__(
        self,
        beams: trtllm_lite._core.sampling.BeamSearchParams,
        params: trtllm_lite._core.sampling.SamplingParams,
        prompt: Sequence[int],
        vocab_size: int,
    ) -> None: ...
    def step(
        self,
        logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    ) -> list[tuple[int, int]]:
        """
        Takes ``logits`` [live beams, vocab_size]; returns (parent, token) of each beam of the next step.
        """

    @property
    def done(self) -> bool: ...
    def hypotheses(self) -> list[tuple[list[int], float]]:
        """Finished sequences and their scores, best first."""

class GrammarMatcher:
    """
    A text that grows under a grammar. GrammarError of the C++ side becomes a RuntimeError.
    """

    def allowed(self, vocab_size: int) -> list[int]:
        """The tokens that may come next."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Append tokens."""

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """
        The number of leading ``tokens``, none of them an end token, that may follow one after the other.
        """

    def roll_back(self, count: int) -> None:
        """Remove the last ``count`` tokens."""

def start_grammar(grammar: trtllm_lite._core.Grammar) -> GrammarMatcher:
    """A matcher of the empty text."""

class TokenForcer:
    """
    Drafts the continuation of a text under a grammar. GrammarError of the C++ side becomes a RuntimeError.
    """

    def accept(self, tokens: Sequence[int]) -> None:
        """Append tokens."""

    def forced_tokens(self, most: int) -> list[int]:
        """Up to ``most`` tokens that the grammar determines."""

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens`` may come next."""

class HeldGrammar(trtllm_lite._core.Grammar):
    """
    A grammar whose masks, for texts of at least ``num_free`` tokens, are held back until it is released.
    """

    def __init__(self, grammar: trtllm_lite._core.Grammar, num_free: int) -> None: ...
    def release(self) -> None:
        """Hold back nothing more."""

def start_forcer(grammar: trtllm_lite._core.Grammar) -> TokenForcer:
    """
    A forcer of the empty text; the grammar's compiler must have been made with ``tokenize``.
    """
