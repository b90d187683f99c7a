"""
The C++ runtime. Raises the classes of ``trtllm_lite.errors``.

Arrays are C-contiguous and of exactly the dtypes given here: nothing is converted silently.
"""

from collections.abc import Callable, Mapping, Sequence
import enum
from typing import Annotated, Any, overload

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from trtllm_lite._core import sampling as sampling
import trtllm_lite.runtime.interfaces

class HomeProcess:
    """
    The process that made this object. Its forks lack the threads and devices that its engines need.
    """

    def __init__(self) -> None: ...
    def is_this(self) -> bool: ...
    def check(self) -> None:
        """Raises EngineError in a fork of the process."""

def crc32c(data: Buffer, crc: int = 0) -> int:
    """
    CRC-32C (RFC 3720) of ``data`` after data whose checksum is ``crc``. The GIL is released.
    """

class Engine:
    """
    An engine file, mapped read-only and checked from the first byte to the last.

    The checks cover structure, versions, all checksums, and the plan against the operators' schemas: an accepted
    file is safe to execute, whoever wrote it.
    """

    def __init__(self, path: str) -> None:
        """
        Raises EngineError, with the path, what was expected, what was found, and a remedy.
        """

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

    def network(self, key: str) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """
        A read-only view of the file's entry ``network.<key>``. Raises EngineError if there is none.
        """

class KvGeometry:
    """
    The blocks of the KV cache that sequences need: ``groups`` has, for each cache group of a manifest, its kind, its
    window (0 for none), and the number of consecutive blocks that an entry of its tables takes.

    A step computes at most ``max_step_tokens`` of a sequence.
    """

    def __init__(self, tokens_per_block: int, groups: Sequence[tuple[str, int, int]], max_step_tokens: int) -> None: ...
    def most_blocks(self, num_remaining: int, max_length: int) -> int:
        """
        The most blocks that a sequence holds at once with ``num_remaining`` known tokens still to be computed.
        """

    def most_blocks_of_batch(self, batch_size: int, max_length: int) -> int:
        """
        The most blocks that a batch of sequences holds at once if it computes one prompt at a time.
        """

    def longest_sequence(self, num_blocks: int) -> int:
        """Tokens of the longest sequence that ``num_blocks`` blocks hold."""

def resize_image(
    image: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, 3), order="C", device="cpu", writable=False)],
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, 3), order="C", device="cpu")],
    filter: int,
    implementation: int = 0,
) -> None:
    """
    Resize ``image`` to the extents of ``out``, both uint8 [height, width, 3], with Pillow's results.

    ``filter`` is Pillow's number of a filter other than NEAREST. Implementations, best first, have the same results;
    all but 0 are for tests. Raises ArgumentError. The GIL is released.
    """

def cut_patches(
    tile: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, 3), device="cpu", writable=False)],
    side: int,
    merge: int,
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order="C", device="cpu")],
) -> None:
    """
    Write the patches of ``tile``, uint8 [height, width, 3], to ``out``: uint8 [num_patches, 3 * side * side].

    A patch is [channel, row, column]. Those of ``merge`` x ``merge`` follow each other; pixels that make up no whole
    patch are left out. Raises ArgumentError if extents do not agree. The GIL is released.
    """

def run_kernel(
    op: str,
    inputs: Sequence[Annotated[NDArray, dict(order="C", device="cpu")] | None],
    outputs: Sequence[Annotated[NDArray, dict(order="C", device="cpu")] | None],
    attributes: dict[str, float | str],
    layouts: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    isa: str = "auto",
    num_threads: int = 0,
    product_dtype: str = "float32",
    adapters: Sequence[
        Sequence[
            tuple[
                Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
                Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
            ]
            | None
        ]
    ] = [],
) -> None:
    """
    Run one kernel on arrays after the engine's schema check; outputs are written in place.

    ``layouts`` and ``dtypes`` are per input; bfloat16 arrays come as uint16. A packed weight's logical
    extent is taken from the other operands, or else its padding counts. Values of int32 inputs are not
    checked. ``product_dtype`` is the type to which activations may be rounded before they are
    multiplied: ``float32``, which changes nothing, or ``bfloat16``. ``adapters`` has for each token A
    and the transposed B of each projection, or nothing.
    """

class Adapter:
    """
    An adapter in memory, of one engine; any number of requests may share it.
    """

    def __init__(
        self,
        engine: Engine,
        pairs: Mapping[
            int,
            tuple[
                str,
                Annotated[NDArray, dict(shape=(None, None), order="C", device="cpu", writable=False)],
                Annotated[NDArray, dict(shape=(None, None), order="C", device="cpu", writable=False)],
                float,
            ],
        ],
        key: bytes,
    ) -> None:
        """
        ``pairs`` maps a projection's number to its name, A [rank, in], B [out, rank], and the scale of B.

        The matrices are float32, float16, or bfloat16 as uint16. Adapters of equal ``key`` are equal. Raises
        LimitError for a rank, projection or size that the engine lacks, EngineError, with the name, for elements
        that are not finite.
        """

def adapter_shapes(engine: Engine) -> tuple[int, list[tuple[int, int]]]:
    """
    The highest rank of adapters, and [in, out] of the projections that they may change; 0 and [] without any.
    """

SCRATCH_BYTES_PER_THREAD: int
"""Bytes of scratch memory that each thread of an executor owns."""

SHARED_SCRATCH_BYTES: int
"""Bytes of scratch memory that all threads of an executor share."""

BESIDE_TOKENS: int
"""The most tokens of a step that a CPU computes beside a paused one."""

SIDE_TOKENS: int
"""The most tokens of a step that a GPU computes beside a paused one."""

class DeviceExecutor:
    """An engine that is loaded on a device of the kind its manifest names."""

    @property
    def memory(self) -> dict[str, int]:
        """
        Reserved bytes: ``weights``, ``kv_cache``, ``adapters``, ``workspace`` (on CPUs with all scratch memory).
        """

    def place_adapter(self, adapter: Adapter, *, slot: int) -> None:
        """
        Put an adapter where steps find it, on a GPU into a slot that no running request has.

        Call this before requests run with the adapter; one thread may do so while steps run. Raises LimitError
        (no such slot), DeviceError.
        """

    def num_missing_slabs(self, slot: int) -> int:
        """
        The slabs of the KV cache's memory that a slot needs before an adapter is placed there.
        """

    def give_to_adapters(self, slabs: Sequence[int]) -> None:
        """
        Take slabs of memory from the KV cache, which the event loop has lent. Raises DeviceError.
        """

    def empty_adapter_slot(self, slot: int) -> None:
        """
        Make the memory of a slot that no request uses ready for other slots.

        No request may run with the adapter that was there until it is placed again. Raises DeviceError.
        """

    def take_from_adapters(self) -> list[int]:
        """
        Give memory that no slot uses back to the KV cache; the slabs that it has again, for the event loop.

        Raises DeviceError.
        """

    @property
    def num_lent_slabs(self) -> int:
        """Slabs of the KV cache that adapters have."""

    def output(
        self, name: str, begin: int = 0, end: int | None = None
    ) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None))]:
        """
        Rows ``begin`` to ``end`` of the output ``name`` of the plan in the last step, as bytes.

        Raises ArgumentError if the plan has no such output, LimitError if the step had fewer rows. The call takes
        turns with steps.
        """

    def expert_counts(self) -> list[dict[str, Any]]:
        """
        Counts of each router's choices since the engine was loaded: the fields of session.experts.ExpertCounts.

        Layers that other processes compute are left out. Steps go on meanwhile.
        """

class LogitsExecutor(DeviceExecutor):
    """
    An executor whose logits come to the host: on CPUs, of a Network, or RemoteStages.
    """

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of the KV cache: keys and values of all layers."""

    def copy_block(self, src: int, dst: int) -> None:
        """
        Copy a block of the KV cache. Like steps, copies take turns. Raises LimitError.
        """

    def save_block(self, block: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """The bytes of a block. Raises LimitError."""

    def load_block(
        self,
        block: int,
        data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None:
        """
        Write the bytes of a block that ``save_block`` returned. Raises LimitError.
        """

class NetworkExecutor(LogitsExecutor):
    """
    An engine whose plan is a network, which has a KV block for each sequence.
    """

class CpuExecutor(LogitsExecutor):
    """
    Executes the plan of an engine, and owns its KV cache and workspace. Threads may share it: steps take turns.
    """

    def __init__(self, engine: Engine, *, num_threads: int = 0, num_blocks: int = 0, isa: str = "auto") -> None:
        """
        ``num_threads`` 0: every core this process may use; ``num_blocks`` 0: the cache size of the manifest.

        Raises ArgumentError or LimitError for options that are invalid or do not fit in memory, EngineError if
        this build lacks a kernel.
        """

    @property
    def num_threads(self) -> int:
        """Threads that execute a step."""

    @property
    def isa(self) -> str:
        """The instruction set of the kernels."""

class CpuGroup(LogitsExecutor):
    """
    The ranks of an engine for CPUs, each on its own threads. Made by ``open_executor``.
    """

class CpuPipeline(LogitsExecutor):
    """
    The stages of an engine for CPUs, each on its own threads. Made by ``open_executor``.
    """

def open_executor(
    ranks: Sequence[Engine],
    *,
    num_blocks: int = 0,
    num_threads: int = 0,
    library_directories: Sequence[str] = [],
    network: trtllm_lite.runtime.interfaces.Network | None = None,
    features_of: DeviceExecutor | None = None,
    num_loras: int = 0,
    adapter_bytes: int | None = None,
    devices: Sequence[int] = [],
    rank_timeout: float = 30.0,
) -> DeviceExecutor:
    """
    Load the engines of all ranks; the options are those of CpuExecutor, CudaExecutor and NetworkExecutor.

    Each kind of executor ignores the options of the others. The engine of a drafting head reads features that
    ``features_of`` keeps; on a GPU there are ``num_loras`` slots for adapters, which take ``adapter_bytes`` of its
    memory (None: all that they need) and borrow the rest from the KV cache. ``devices`` are the numbers of the
    ranks' GPUs. A rank that reaches a collective ``rank_timeout`` seconds after another ends the step with
    DeviceError. Raises ArgumentError without the network that a NetworkExecutor needs, or without fitting features.
    """

def open_stage(
    ranks: Sequence[Engine],
    *,
    num_blocks: int = 0,
    num_threads: int = 0,
    library_directories: Sequence[str] = [],
    network: trtllm_lite.runtime.interfaces.Network | None = None,
    features_of: DeviceExecutor | None = None,
    num_loras: int = 0,
    adapter_bytes: int | None = None,
    devices: Sequence[int] = [],
    rank_timeout: float = 30.0,
) -> DeviceExecutor:
    """
    Like ``open_executor``, for the ranks of one stage of a pipeline, whose steps ``step_stage`` runs.
    """

def step_stage(
    executor: LogitsExecutor,
    token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    seq_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    past_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    block_tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    logits_indices: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    received: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))] | Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
    """
    Like ``step``, for one stage of a pipeline from ``open_stage``; ``received`` is the result of the
    previous stage.

    The first stage receives no bytes. Returns the bytes for the next stage, or from the last stage the
    logits.
    """

@overload
def time_step(
    executor: CpuExecutor, *, num_rows: int, num_tokens: int = 1, past_len: int = 0, repeats: int = 5
) -> list[tuple[str, float]]:
    """
    Name and seconds of each instruction of a step, in order: medians of ``repeats`` runs after one to
    warm up.

    The step has ``num_rows`` sequences with ``past_len`` tokens in the cache, which is overwritten, and
    ``num_tokens`` new tokens each. No other step may be in progress. Raises LimitError if the engine has
    no such step.
    """

@overload
def time_step(
    executor: CudaExecutor,
    *,
    num_rows: int,
    num_tokens: int = 1,
    past_len: int = 0,
    repeats: int = 5,
    adapters: Sequence[Adapter] = [],
) -> list[tuple[str, float]]:
    """
    Time a step as on CPUs; the sequences run in turn with ``adapters``, which are in their slots
    already.
    """

@overload
def step(
    executor: LogitsExecutor,
    token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    seq_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    past_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    block_tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    logits_indices: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]: ...
@overload
def step(
    executor: CudaExecutor,
    token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    seq_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    past_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    block_tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    logits_indices: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
    """
    Run all new tokens of a batch through the model, without an event loop; the GIL is released.

    ``token_ids`` [T]: the new tokens of all sequences, one sequence after the other; ``seq_lens`` [S]: the number
    of new tokens of each, at least 1, T in all; ``past_lens`` [S]: the number of tokens in the cache;
    ``block_tables`` [S, columns]: cache blocks of each sequence, entries past its length are ignored;
    ``logits_indices`` [L]: rows of ``token_ids`` whose logits are wanted. Returns logits [L, vocab_size] in memory
    of their own.

    On a GPU, all rows of a sequence from its first wanted row on count towards the limit of rows of logits. Threads
    may share an executor: steps take turns. Raises LimitError before anything is computed if a size or value is
    beyond its limit.
    """

@overload
def compute(
    executor: LogitsExecutor,
    token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    seq_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    past_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    block_tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    logits_indices: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
) -> None: ...
@overload
def compute(
    executor: CudaExecutor,
    token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    seq_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    past_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    block_tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    logits_indices: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
) -> None:
    """
    Like ``step``, but all results stay on the device, for :meth:`DeviceExecutor.output`.
    """

class CudaExecutor(DeviceExecutor):
    """
    An engine on a GPU: its weights, KV cache, kernels and graphs.

    An EventLoop runs steps on it; no step may run while one of this object's own methods runs.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        device: int = 0,
        num_blocks: int = 0,
        library_directories: Sequence[str] = [],
        features_of: CudaExecutor | None = None,
        num_loras: int = 0,
        adapter_bytes: int | None = None,
    ) -> None:
        """
        ``num_blocks`` 0: the cache size of the manifest; ``library_directories``: further places to look for
        cuBLASLt.

        The engine of a drafting head reads features that ``features_of`` keeps. ``num_loras``: slots for
        adapters, which take ``adapter_bytes`` of the GPU's memory (None: all that they need) and borrow the rest
        from the KV cache.

        Raises DeviceError (no such GPU, no driver, no cuBLASLt), EngineError (built for another GPU or
        cuBLASLt), LimitError (not enough memory).
        """

    def time_products(
        self, *, num_tokens: int, above: int = 0, candidates: int = 16, repeats: int = 7, sustained: bool = False
    ) -> list[dict[str, Any]]:
        """
        The fastest of the first ``candidates`` cuBLASLt algorithms for each kind of product in a step.

        An algorithm must compute every number of rows from that of a step of ``above`` tokens up to that of a
        step of ``num_tokens``; where no algorithm does, there are entries for parts of this range. A product
        that has no more rows than in a step of ``above`` tokens has no entry. ``sustained``: algorithms are
        timed after each has run alone for a while, so at the card's power limit. The keys of an entry: dtype,
        out_dtype, out_features, in_features, gated, residual, bias; rows, algo (hexadecimal), microseconds,
        heuristic_microseconds (of the algorithm that cuBLASLt proposes first). Raises LimitError, DeviceError.
        """

    def time_programs(
        self, names: Sequence[str], *, num_tokens: int, repeats: int = 7, sustained: bool = False
    ) -> list[float | None]:
        """
        Microseconds of each of the programs ``names``, which can carry out a step of ``num_tokens``, timed in
        turns.

        With ``sustained`` they are timed as in ``time_products``, and the result is None for all programs but
        the first and those that were fastest in turns. Raises LimitError, DeviceError.
        """

    @property
    def cublaslt_version(self) -> int:
        """The version of cuBLASLt, in the form of cublasLtGetVersion."""

    @property
    def device_name(self) -> str:
        """The driver's name of the GPU."""

class GramMatrix:
    """
    The sum of the outer products of rows that steps leave as an output, float32 on the GPU; zero at first.
    """

    def __init__(self, executor: CudaExecutor, name: str) -> None:
        """
        Sum up the output ``name`` of a CudaExecutor, a matrix of 16-bit elements.

        Raises ArgumentError (no such output), DeviceError (no cuBLASLt), LimitError (too little memory).
        """

    def add(self) -> None:
        """Add the rows of the executor's last step. Raises DeviceError."""

    def values(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """The sum so far [features, features]. Raises DeviceError."""

def cuda_device(device: int = 0) -> dict[str, str]:
    """
    A GPU's ``name`` and ``arch`` (``sm_90``), and the ``cuda_version`` (``13.0``) of its driver.

    Raises DeviceError.
    """

def cuda_devices() -> list[dict[str, Any]]:
    """
    Every GPU that this process may use: its ``name``, ``arch`` (``sm_90``) and ``memory`` (bytes); none without a
    driver.

    Nothing is done on the GPUs. Raises DeviceError if the driver fails.
    """

def cublaslt_version(library_directories: Sequence[str]) -> int:
    """
    The version of this machine's cuBLASLt (130100 is 13.1.0), which needs no GPU. Raises DeviceError without
    one.
    """

class GpuContext:
    """
    Keeps the CUDA context of a GPU, which takes 0.2 s to make and ends with its last user.
    """

    def __init__(self, device: int = 0) -> None:
        """Raises DeviceError."""

    @property
    def free_memory(self) -> int:
        """In bytes."""

def cuda_device_memory(device: int = 0) -> dict[str, int]:
    """Bytes of a GPU's memory: ``free`` and ``total``. Raises DeviceError."""

def cuda_slab_bytes(device: int = 0) -> int:
    """
    Bytes of a slab, the unit in which memory moves between the KV cache and adapters. Raises DeviceError.
    """

def nccl_ids(count: int, library_directories: Sequence[str]) -> list[bytes]:
    """
    Ids by which ranks of several processes find each other. Raises DeviceError without NCCL.
    """

class StageWorker:
    """
    A stage, other than the last, of an engine for GPUs, in a process of its own.

    One thread calls ``connect``, ``capture`` and ``step``; others may call ``watch``, ``has_ended`` and ``close``.
    """

    def __init__(
        self,
        ranks: Sequence[Engine],
        *,
        devices: Sequence[int],
        num_blocks: int,
        num_host_blocks: int,
        library_directories: Sequence[str],
        rank_timeout: float,
    ) -> None:
        """
        ``ranks`` are the engines of the stage. Raises the errors of ``open_executor``.
        """

    @property
    def memory(self) -> dict[str, int]:
        """Reserved bytes: ``weights``, ``kv_cache``, ``workspace``."""

    def connect(self, engine: Engine, ids: Sequence[bytes], library_directories: Sequence[str]) -> None:
        """The counterpart of ``LastStage.connect``."""

    def capture(
        self,
        shape: tuple[int, int, int, int, int, bool],
        inputs: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None:
        """
        Capture the graph of a decode-only step, before the first step. Raises LimitError, DeviceError.
        """

    def step(
        self,
        number: int,
        copies: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        shape: tuple[int, int, int, int, int, bool],
        inputs: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None:
        """
        Put a step on the streams of the GPUs; ``watch`` reports a failure.

        ``copies`` has a row for each KV block that is copied first: kind, source, destination. ``shape`` is
        num_tokens, num_seqs, num_decode_seqs, num_decode_tokens, num_logits, and whether the step is
        decode-only; ``inputs`` are packed for it.
        """

    def watch(self) -> None:
        """
        Wait until ``close`` is called. Raises DeviceError as soon as a step fails.
        """

    def has_ended(self, number: int) -> bool:
        """Whether the step of that number, or a later one, has ended."""

    def close(self) -> None:
        """Reject all further steps."""

class LastStage(DeviceExecutor):
    """
    The last stage of an engine for GPUs, whose other stages compute in other processes.
    """

    def __init__(
        self,
        ranks: Sequence[Engine],
        stages: trtllm_lite.runtime.interfaces.EarlierStages,
        *,
        devices: Sequence[int],
        num_blocks: int,
        library_directories: Sequence[str],
        rank_timeout: float,
    ) -> None:
        """
        ``ranks`` are the engines of the stage. Raises the errors of ``open_executor``.
        """

    def connect(self, engine: Engine, ids: Sequence[bytes], library_directories: Sequence[str]) -> None:
        """
        Connect with the other stages, which connect at the same time, and wait for them.

        ``ids`` come from ``nccl_ids``, with one for each rank of all stages. Raises DeviceError.
        """

plugin_abi: int = 1

def load_plugin(path: str, package: str, version: str, digest: str) -> list[str]:
    """
    Let engines call the CPU kernels in the shared library ``path`` of an installed package.

    Returns the names of the operators that have a kernel which this machine can run. ``digest`` is that of the
    package's schemas. Raises EngineError if the library does not load, or was compiled for
    another version of the ABI (``plugin_abi``) or against other schemas.
    """

class RemoteStages(LogitsExecutor):
    """An engine whose stages compute in other processes."""

    def __init__(self, engine: Engine, stages: trtllm_lite.runtime.interfaces.Stages) -> None:
        """
        ``engine`` is the engine of rank 0, from which all common facts of the stages are read.
        """

def return_free_memory() -> None:
    """
    Return freed memory of this process to the system (heap.h). The GIL is released.
    """

class ThoughtTokens:
    """
    The tokens with which one model writes thoughts, for any number of grammars.
    """

class Grammar:
    """A compiled grammar, which any number of requests may share."""

    def behind(self, tokens: ThoughtTokens) -> Grammar:
        """
        This grammar for texts that may begin with thoughts (reasoning.h); ``tokens`` come from the same
        compiler.
        """

class GrammarCompiler:
    """Compiles grammars over the tokens of one model, by llguidance."""

    def __init__(
        self,
        *,
        library: str,
        tokenizer_json: str,
        vocab_size: int,
        end_ids: Sequence[int],
        tokenize: Callable[[bytes], Sequence[int]] | None = None,
    ) -> None:
        """
        ``library`` is the path of llguidance's shared library; ``end_ids`` must not be empty.

        ``tokenize`` returns the tokens of a text that a grammar drafts, [] if it cannot; None: grammars do not
        draft. Event loops call it from their own threads.

        Raises ArgumentError for an unknown version of llguidance, or a tokenizer that it cannot read;
        DeviceError if the library does not load.
        """

    def compile(self, kind: str, text: str, *, names_tokens: bool = False) -> Grammar:
        """
        ``kind`` is json_schema, regex, lark or llguidance. The GIL is released.

        A grammar that ``names_tokens``, such as ``<[3]>``, drafts nothing.

        Raises ArgumentError for a grammar that llguidance refuses, LimitError for one that exceeds its limits.
        A text that has not passed ``try_out`` may crash the process.
        """

    def try_out(self, kind: str, text: str, *, num_tokens: int, names_tokens: bool = False) -> int:
        """
        Compile, and write a random text of ``num_tokens``, on a smaller stack than ``compile`` has.

        Returns the bytes of memory that the grammar takes. Meant for a process of its own, which this call may
        crash.
        """

    def tokens_of(self, thoughts: Thoughts) -> ThoughtTokens:
        """
        The tokens with which the model writes thoughts; finding them takes a moment. The GIL is released.
        """

class FinishReason(enum.Enum):
    """The reason why a request ended."""

    END_ID = 0

    STOP_SEQUENCE = 1

    LENGTH = 2

    CANCELLED = 3

    TIMED_OUT = 4

    ERROR = 5

class RequestTimings:
    """
    Times in seconds from submission; ``seconds_per_token`` is a mean over the tokens after the first.
    """

    def __init__(self) -> None: ...
    @property
    def queue_seconds(self) -> float: ...
    @property
    def first_token_seconds(self) -> float: ...
    @property
    def seconds_per_token(self) -> float: ...
    @property
    def total_seconds(self) -> float: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_cached_tokens(self) -> int: ...
    @property
    def num_generated_tokens(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...

class TokenEvent:
    """
    A step's result for a request: outputs, and ``tokens``, the first of which is the request's number ``index``.

    Without ``has_outputs`` there are only tokens.
    """

    @property
    def request_id(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def index(self) -> int: ...
    @property
    def has_outputs(self) -> bool: ...
    @property
    def context_logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))] | None:
        """
        [positions, vocab_size]; the events of a request hold them for each prompt position once, in order.
        """

    @property
    def generation_logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))] | None:
        """[tokens, vocab_size]: the logits that the tokens were sampled from."""

    @property
    def logprobs(self) -> list[sampling.RowLogprobs]:
        """Log probabilities by token; empty if they were not requested."""

    @property
    def prompt_logprobs(self) -> list[sampling.RowLogprobs]:
        """
        Log probabilities of prompt tokens, in order, from the second token on.
        """

    @property
    def hypotheses(self) -> list[tuple[list[int], float]]:
        """
        The sequences that a beam search found, best first: generated tokens and score. Set only in its last
        event.
        """

class RequestEnd:
    """
    The last event of every request. ``message`` describes the error if the reason is ERROR.
    """

    @property
    def request_id(self) -> int: ...
    @property
    def reason(self) -> FinishReason: ...
    @property
    def message(self) -> str: ...
    @property
    def timings(self) -> RequestTimings: ...

class NgramSizes:
    """
    The least and the greatest number of tokens of an n-gram (ngram_drafter.h).
    """

    def __init__(self, min: int, max: int) -> None: ...

class SuffixOptions:
    """
    How many tokens are drafted from earlier text, and of how many requests text is kept (suffix_drafter.h).
    """

    def __init__(self, max_cached_requests: int, max_spec_factor: float, min_token_prob: float) -> None: ...

class SyntheticOptions:
    """
    The probabilities that a draft token is accepted, by its position from 1 (synthetic_drafter.h).
    """

    def __init__(self, acceptance_rates: Sequence[float]) -> None: ...

def check_draft_model(target: Engine, draft: Engine, *, max_seq_len: int, max_batch_size: int) -> None:
    """
    Raise ArgumentError if ``draft`` cannot draft for ``target``, LimitError if its limits are lower than
    needed.
    """

MAX_PRIORITY: int
"""Priorities of requests are from -MAX_PRIORITY to MAX_PRIORITY."""

class Loop:
    """
    Runs requests over an executor, on its own threads.

    Any thread may submit and cancel requests; one thread polls.
    """

    def cancel(self, request_id: int) -> bool:
        """End a request within a step; False if its end has been polled already."""

    def hold(self) -> None:
        """
        Keep requests that are submitted before ``release`` waiting for one another: they start in one step.

        No more than one step can start are kept waiting. Each call is followed by one of ``release``.
        """

    def release(self) -> None:
        """Let requests start that wait since ``hold``."""

    @property
    def device_failed(self) -> bool:
        """Whether a step failed because the device did."""

    def stats(self) -> dict[str, Any]:
        """
        Counts of requests, blocks, tokens, steps and preemptions, and recent means of seconds per step.
        """

    def record_steps(self, most: int) -> None:
        """
        Record the times and tokens of the next ``most`` steps, and forget those of earlier steps.
        """

    def take_steps(self) -> tuple[list[tuple[float, float, float, float, int, int, int]], int]:
        """
        End the recording; returns the recorded steps, and the number of later steps for which there was no room.

        A step has: the instants of its begin and end in seconds of ``time.perf_counter``, seconds of the host,
        seconds on the device (0 if unknown), rows, tokens, tokens of rows that decode.
        """

    def shut_down(self, *, drain: bool = True) -> None:
        """
        Accept no more requests; let accepted requests run to their end, or cancel them. Returns at once.
        """

class PromptRows:
    """Embeddings that take the place of tokens of a prompt."""

    def __init__(
        self,
        positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", writable=False)],
        rows: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order="C", writable=False)],
        digests: bytes,
    ) -> None:
        """
        Row i, uint8[row_bytes] in the type of the engine's activations, takes the place of the token at
        ``positions[i]``, int32 in ascending order. ``digests`` has 16 bytes for each row, by which prefixes are told
        apart. Copies all of them. Raises LimitError if their numbers differ.
        """

MAX_STOP_WORDS: int
"""The most stop sequences of a request; Python bounds stop strings likewise."""

MAX_STOP_WORD_LENGTH: int
"""The most tokens of a stop sequence; Python bounds stop strings likewise."""

class EventLoop(Loop):
    """
    Schedules in-flight batching of a decoder over its executor.

    Steps of other callers of the executor take turns with the loop's, but would overwrite its KV cache.
    """

    def __init__(
        self,
        executor: DeviceExecutor,
        *,
        max_batch_size: int,
        max_input_len: int,
        max_seq_len: int,
        max_num_tokens: int,
        num_host_blocks: int = 0,
        max_utilization: bool = False,
        enable_block_reuse: bool = False,
        enable_chunked_context: bool = True,
        state_interval: int = 0,
        max_draft_len: int = 0,
        paces_drafts: bool = True,
        drafting: NgramSizes | SuffixOptions | SyntheticOptions | None = None,
        draft_model: DeviceExecutor | None = None,
    ) -> None:
        """
        Limits may be tighter than the engine's. ``max_utilization`` admits requests beyond what the KV cache
        guarantees and preempts some if it runs out: they are computed again, or swapped to ``num_host_blocks``
        blocks. ``enable_block_reuse``: requests share the blocks of equal prefixes.
        ``enable_chunked_context``: a prompt may be spread over several steps; without it ``max_input_len``
        must not exceed ``max_num_tokens``. ``state_interval``: the states of recurrent layers are kept for
        other requests after every so many blocks of a prompt, beside those that are always kept; 0 for none.

        A row has up to ``max_draft_len`` draft tokens, from the request's grammar, else from ``drafting`` or
        ``draft_model``, another executor on the same device, which nothing else may use. ``paces_drafts``:
        only as many tokens are drafted as save time.

        Raises LimitError for a limit beyond the engine's, ArgumentError for a ``draft_model`` that cannot
        draft for the engine.
        """

    def submit(
        self,
        prompt_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        params: sampling.SamplingParams,
        *,
        stop_sequences: Sequence[Sequence[int]] = [],
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
        sequence_index: int = 0,
        context_logits: bool = False,
        generation_logits: bool = False,
        beams: sampling.BeamSearchParams | None = None,
        grammar: Grammar | None = None,
        adapter: Adapter | None = None,
        rows: PromptRows | None = None,
    ) -> int:
        """
        Queue a request; returns its id at once.

        With ``beams`` the request is a beam search: it delivers no tokens, only an event with ``hypotheses``
        just before its end. It takes as many places in a batch as it has beams, and allows neither stop
        sequences nor ``generation_logits``. With ``grammar`` the generated tokens spell one of its texts,
        unless something other than an end token ends them.

        With ``rows`` embeddings take the place of some tokens of the prompt, which can be any.

        ``timeout`` is in seconds; requests of a greater ``priority`` (up to MAX_PRIORITY) are served earlier;
        only requests of equal ``cache_salt`` share blocks. Requests with one seed get different random numbers
        if their ``sequence_index`` differs. Raises LimitError if the request exceeds a limit, OverloadedError
        if too many requests are outstanding (for one whose ``sequence_index`` is not 0, half as many are too
        many), EngineError if the engine's file has been written to, or in a fork of the process. Wrong
        sampling parameters end the request with an error.
        """

    def poll(self, timeout: float) -> tuple[list[TokenEvent], list[RequestEnd]] | None:
        """
        Events since the last call, waiting for one at most ``timeout`` seconds; the GIL is released.

        The tokens of a request come in order, before its end or together with it.

        None: the loop is shut down and every event has been delivered.
        """

    @property
    def short_of_blocks(self) -> bool:
        """
        Whether requests, at the last poll, waited for blocks whose memory is lent; told once each time.
        """

    def lend_slabs(self, num_slabs: int) -> list[int]:
        """
        Take slabs of memory from the KV cache for another use; waits until no step reaches them, for their numbers.

        Raises LimitError if the cache cannot spare so many, or the loop is shut down.
        """

    def return_slabs(self, slabs: Sequence[int]) -> None:
        """Give slabs back to the KV cache."""

class EncoderLoop(Loop):
    """
    Schedules texts in the steps of an encoder over its executor. Each text is a request.
    """

    def __init__(
        self, executor: DeviceExecutor, *, max_batch_size: int, max_input_len: int, max_num_tokens: int
    ) -> None:
        """
        Limits may be tighter than the engine's: texts of a step, tokens of a text, tokens of a step.

        Raises LimitError for a limit beyond the engine's.
        """

    def submit(
        self,
        token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        *,
        flow: int,
        priority: int = 0,
        timeout: float | None = None,
        rows: Sequence[PromptRows] = [],
    ) -> int:
        """
        Queue texts, whose tokens come one text after the other. The ids of their requests are consecutive; the
        first is returned at once.

        Texts of a greater ``priority`` are served earlier; those of one priority in turns of the callers, whose
        numbers are ``flow``. ``timeout`` is in seconds. A vision tower takes the ``rows`` of each image, patches
        that take the place of its tokens. If this raises, none of the texts is embedded: LimitError if one
        exceeds a limit, OverloadedError if too many requests are outstanding, EngineError if the engine's file
        has been written to, or in a fork of the process.
        """

    def poll(
        self, timeout: float
    ) -> (
        tuple[
            Annotated[NDArray[numpy.int64], dict(shape=(None,))],
            Annotated[NDArray[numpy.uint8], dict(shape=(None,))],
            Annotated[NDArray[numpy.int32], dict(shape=(None,))],
            Annotated[NDArray[numpy.float64], dict(shape=(None, None))],
            Annotated[NDArray[numpy.float32], dict(shape=(None, None))],
            dict[int, str],
        ]
        | None
    ):
        """
        What has ended since the last call, waiting for it at most ``timeout`` seconds; the GIL is released.

        Of n texts: ids int64[n]; reasons uint8[n], values of FinishReason, of which END_ID stands for an embedding;
        numbers of tokens int32[n]; seconds float64[n, 2] in the queue and in all; the embeddings
        float32[rows, embedding_size], in order, one row of a text and some of an image; and the messages of errors by
        id.

        None: the loop is shut down and every end has been delivered.
        """

class ByteSpelling(enum.Enum):
    """How the tokens of a vocabulary spell bytes: see token_bytes.h."""

    NONE = 0

    ALPHABET = 1

    FALLBACK = 2

class TokenBytes:
    """
    The text that each token of a tokenizer adds. Any number of streams may share it.
    """

    def __init__(
        self,
        vocabulary: dict[str, int],
        added_tokens: dict[int, str],
        special_ids: Sequence[int],
        *,
        replacements: Sequence[tuple[str, str, str]],
        bytes: ByteSpelling,
        separator: str,
        stripped: str,
        max_stripped: int,
    ) -> None:
        """
        For an id in both, the text in ``added_tokens`` counts. token_bytes.h explains the keyword arguments.

        Raises EngineError for ids above 2**24 - 1, or texts of more than a gigabyte.
        """

class StopWords:
    """
    The stop words of a request: texts, and sequences of token ids; none of them is empty.
    """

    def __init__(self, texts: Sequence[str], sequences: Sequence[Sequence[int]]) -> None: ...

class Thoughts:
    """
    Markers of the end of thoughts, after which answers begin (thoughts.h).
    """

    def __init__(self, starts: Sequence[str], ends: Sequence[Sequence[str]]) -> None:
        """
        Any of ``starts`` begins thoughts; without any, thoughts begin with the text.

        They end after one text from each entry of ``ends``, one after the other.
        """

class TextStream:
    """
    Turns the tokens of one sequence into pieces of text, none of which is ever taken back.
    """

    def __init__(
        self,
        tokens: TokenBytes | None,
        prompt_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        stop_words: StopWords,
        *,
        thoughts: Thoughts | None = None,
        skips_special: bool = True,
        returns_text: bool = True,
        min_tokens: int = 0,
        includes_stop: bool = False,
    ) -> None:
        """
        ``prompt_ids`` decide whether the text starts with a space; their own text is no part of a piece.

        Without ``tokens`` there is no text, and only stop sequences are found. With ``thoughts``, which need
        ``tokens``, stop words are found only in the answer after the thoughts. With ``skips_special`` special
        tokens print nothing. Without ``returns_text`` the text is only searched for stop words. A stop word
        that is complete before ``min_tokens`` tokens does not count. With ``includes_stop`` the text keeps its
        stop word.
        """

    def finish(self) -> str:
        """
        The text that was held back when generation ended inside a possible stop word or an incomplete character.
        """

    def text_of(self, tokens: Sequence[int], *, ends: bool) -> str:
        """
        The text of tokens up to the end of the stream; ``ends``: the last token, such as an end token, ends
        it.
        """

    @property
    def match(self) -> str | tuple[int, ...] | None:
        """The stop word that has ended the text."""

class TextPump:
    """
    Makes the texts of many streams at once, and counts the gaps between the deliveries of each.
    """

    def __init__(self, gap_bounds: Sequence[float]) -> None:
        """``gap_bounds`` are upper bounds of buckets in seconds, ascending."""

    def push(
        self, streams: list[TextStream], tokens: list[list[int]], ending: Sequence[int] = []
    ) -> tuple[list[list[str]], list[int], list[tuple[int, str]]]:
        """
        Add each list of ``tokens`` to the stream of the same index; one thread pushes to a stream at a time.

        ``ending`` are the indices of streams whose last token, such as an end token, ends the text. Returns
        for each stream a piece of text for every token, up to a stop word; the indices of streams that a stop
        word ended; and the indices of streams that failed, each with the reason, which have no pieces. The GIL
        is released.
        """

    def gaps(self) -> tuple[list[int], float]:
        """
        Histogram of gaps between deliveries: counts by bucket, the last above all bounds, and their sum in seconds.

        A delivery is a call of :meth:`push` with tokens for a stream; the first delivery of a stream ends no gap.
        """

def find_prompts(
    body: Buffer, name: str, most: int
) -> tuple[int, int, bool, int, list[Annotated[NDArray[numpy.int64], dict(shape=(None,))] | tuple[int, int]]] | None:
    """
    Find the prompts in the field ``name`` of the JSON object ``body``; at most the first ``most`` are returned.

    Returns (begin, end, is_list, num_prompts, prompts): the field's value is ``body[begin:end]``, either one prompt
    or a list of ``num_prompts``. A prompt is an array of token ids, int64[len], or for a text the range (begin,
    end) of its JSON in ``body``. None if ``body`` is not an object with exactly one such field, or its value is
    neither a prompt nor a list of prompts. Other JSON in ``body`` and the contents of strings are not checked. The
    GIL is released.
    """

def count_bytes(data: Buffer, characters: str) -> tuple[int, ...]:
    """
    The number of times that ``data`` contains each of the ASCII ``characters``.
    """

def send_each(sockets: Sequence[int], data: Sequence[bytes]) -> list[int]:
    """
    Send to each socket the bytes that it takes without blocking; returns their number, 0 for a broken socket.

    The GIL is released.
    """

def best_read_rate(bytes: int, num_threads: int, passes: int) -> float:
    """
    Bytes per second at which ``num_threads`` threads together read the same ``bytes`` of memory
    repeatedly.

    It is the best rate of ``passes`` passes over each of several access patterns. Raises LimitError if
    there is too little memory.
    """

def resolve_num_threads(num_threads: int = 0) -> int:
    """
    ``num_threads``, or for 0 the number of cores this process may use. Raises ArgumentError for a bad number.
    """
