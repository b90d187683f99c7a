"""Timing caches hold measurements on a GPU as data, so that builds on machines without one make the same choices."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from trtllm_lite.common.files import require_writable, write_file, writing
from trtllm_lite.common.foreign_files import read_foreign
from trtllm_lite.common.vocabulary import MAX_JSON_BYTES
from trtllm_lite.engine.plan import TimedAlgorithm, dotted
from trtllm_lite.engine.records import from_json, parse_json, to_json
from trtllm_lite.errors import BuildError, EngineError
from trtllm_lite.plugins.launch import Matmul

FORMAT_VERSION = 5
CUBLASLT = "cublaslt"
# An algorithm replaces the heuristic's first choice only if it is faster by more than this, the noise of measurements.
_MIN_GAIN = 0.02
_ALGORITHM = re.compile("[0-9a-f]{128}")  # cublasLtMatmulAlgo_t, by its bytes in memory


@dataclass(frozen=True)
class Product:
    """A kind of matrix product of a weight of ``dtype`` and rows of ``x_dtype``; equal kinds have equal timings.

    A ``gated`` product is two products of ``out_features`` each; the SiLU of one is multiplied by the other. ``blocks``
    says whether blocks of a weight's rows have scales or zero points (``WeightForm.blocks``). With ``row_scales`` each
    8-bit row has a scale. ``experts`` says how many experts a row has, and how many there are (``ExpertChoice``).
    """

    dtype: str
    x_dtype: str
    out_dtype: str
    out_features: int
    in_features: int
    gated: bool
    residual: bool
    bias: bool
    blocks: str = ""
    row_scales: bool = False
    experts: str = ""

    @classmethod
    def of(cls, matmul: Matmul) -> "Product":
        """The kind of ``matmul``."""
        return cls(
            dtype=matmul.weight.dtype,
            x_dtype=matmul.weight.dtype,
            out_dtype=matmul.y.dtype,
            out_features=matmul.out_features,
            in_features=matmul.in_features,
            gated=False,
            residual=matmul.residual is not None,
            bias=matmul.bias is not None,
        )

    def __str__(self) -> str:
        added = " + bias" * self.bias + " + residual" * self.residual
        extents = f"{'2 x ' * self.gated}{self.out_features} x {self.in_features}"
        extents += f" of {self.experts}" if self.experts else ""
        rows = self.x_dtype + " with row scales" * self.row_scales
        weight = f"{self.dtype} in {self.blocks}" if self.blocks else self.dtype
        return f"{extents}{added}, {weight if rows == weight else f'{rows} by {weight}'} to {self.out_dtype}"


@dataclass(frozen=True)
class ProductTiming:
    """The fastest algorithm (hexadecimal) for ``rows`` rows, its time, and the time of cuBLASLt's first proposal."""

    product: Product
    rows: int
    algo: str
    microseconds: float
    heuristic_microseconds: float

    @property
    def gains(self) -> bool:
        """Whether the algorithm is faster than the proposal by more than the noise of measurements."""
        return self.microseconds < (1 - _MIN_GAIN) * self.heuristic_microseconds


@dataclass(frozen=True)
class KernelTiming:
    """The time of a whole product for a step of ``rows`` rows: by ``cublaslt``, SiLU included, or by a tiled kernel.

    ``kernel`` names ``cublaslt`` or the tiled kernel; the name stays the same when the kernel's code changes.
    """

    product: Product
    rows: int
    kernel: str
    microseconds: float


Timing = TypeVar("Timing", ProductTiming, KernelTiming)


@dataclass(frozen=True)
class TimingCache:
    """Timings on one device; the algorithms are valid for one version of cuBLASLt.

    ``products`` are the library's algorithms, ``kernels`` the times of cuBLASLt and tiled kernels for the same
    products.
    """

    format_version: int
    device: str
    arch: str
    cublaslt_version: int
    products: tuple[ProductTiming, ...]
    kernels: tuple[KernelTiming, ...]

    @cached_property
    def _by_product(self) -> dict[Product, list[ProductTiming]]:
        return _grouped(self.products)

    @cached_property
    def _kernels_by_product(self) -> dict[Product, list[KernelTiming]]:
        return _grouped(self.kernels)

    def timings(self, product: Product) -> list[ProductTiming]:
        """The timings of a product, in order of rows; empty if nothing was measured."""
        return self._by_product.get(product, [])

    def algorithms(self, product: Product, arch: str, max_rows: int) -> tuple[TimedAlgorithm, ...]:
        """The algorithms for a product of up to ``max_rows`` rows, one for each number of rows that was measured.

        The result is empty on another architecture, or if no algorithm gains anything.
        """
        timings = self.timings(product) if arch == self.arch else []
        needed = sum(timing.rows < max_rows for timing in timings) + 1
        if not any(timing.gains for timing in timings[:needed]):
            return ()
        return tuple(TimedAlgorithm(timing.rows, timing.algo) for timing in timings[:needed])

    def kernel_timings(self, product: Product, rows: range) -> list[KernelTiming]:
        """The timings of a product at the numbers of rows in ``rows``, in order of rows."""
        return [timing for timing in self._kernels_by_product.get(product, []) if timing.rows in rows]

    def merged(self, products: Iterable[ProductTiming], kernels: Iterable[KernelTiming] = ()) -> "TimingCache":
        """This cache with newer timings of the device, which replace older timings of the same product and rows."""
        newer = tuple(kernels)
        measured = {(timing.product, timing.rows) for timing in newer}
        kept = (timing for timing in self.kernels if (timing.product, timing.rows) not in measured)
        algorithms = {(timing.product, timing.rows): timing for timing in (*self.products, *products)}
        return replace(self, products=_ordered(algorithms.values()), kernels=_ordered((*kept, *newer)))

    def merged_with(self, older: "TimingCache") -> "TimingCache":
        """This cache, completed by timings of ``older``. Raises BuildError if ``older`` is of another machine."""
        if (older.device, older.arch, older.cublaslt_version) != (self.device, self.arch, self.cublaslt_version):
            raise BuildError(
                f"the input timing cache was measured on {older._machine}, and output_timing_cache measures "
                f"{self._machine}: timings of both do not fit into one cache, so leave input_timing_cache out, and "
                "keep a cache for each"
            )
        return older.merged(self.products, self.kernels)

    @property
    def _machine(self) -> str:
        """Names the device and the library."""
        return f"{self.device} ({self.arch}) with cuBLAS {dotted(self.cublaslt_version)}"

    def save(self, path: Path) -> None:
        """Write ``path``: one timing a line, the same bytes for equal caches."""
        head = {key: value for key, value in to_json(self).items() if key not in ("products", "kernels")}
        lists = (f' "{key}": [\n{_lines(getattr(self, key))}\n ]' for key in ("products", "kernels"))
        body = json.dumps(head, indent=1)[:-2] + ",\n" + ",\n".join(lists) + "\n}\n"
        with _writing(path):
            write_file(path, body.encode())


def require_output(path: Path) -> None:
    """Raise OutputError if no timing cache could be written to ``path``; measuring takes a while."""
    with _writing(path):
        require_writable(path)


def _writing(path: Path) -> AbstractContextManager[None]:
    return writing(f"the timing cache {path}", "check the path")


def _grouped(timings: Iterable[Timing]) -> dict[Product, list[Timing]]:
    found = defaultdict(list)
    for timing in sorted(timings, key=lambda timing: timing.rows):
        found[timing.product].append(timing)
    return dict(found)


def _ordered(timings: Iterable[Timing]) -> tuple[Timing, ...]:
    return tuple(sorted(timings, key=lambda timing: (astuple(timing.product), timing.rows, timing.microseconds)))


def _lines(timings: Iterable[Timing]) -> str:
    return ",\n".join("  " + json.dumps(to_json(timing)) for timing in timings)


def load_timing_cache(path: Path) -> TimingCache:
    """Read ``path``. Raises BuildError if it does not exist, is no timing cache, or has another version."""
    try:
        cache = from_json(TimingCache, parse_json(read_foreign(path, MAX_JSON_BYTES), str(path)), str(path))
    except OSError as error:
        raise BuildError(f"cannot read the timing cache {path}: {error.strerror}: check the path") from error
    except EngineError as error:
        raise BuildError(f"{path} is not a timing cache: {error}, with --output_timing_cache") from error
    if cache.format_version != FORMAT_VERSION:
        raise BuildError(
            f"{path} has format_version {cache.format_version}, and this installation reads {FORMAT_VERSION}: "
            "measure it again with --output_timing_cache"
        )
    _check_timings(cache.products, lambda timing: (timing.product, timing.rows), path)
    _check_timings(cache.kernels, lambda timing: (timing.product, timing.rows, timing.kernel), path)
    return cache


def _check_timings(timings: Sequence[Timing], key: Callable[[Timing], object], path: Path) -> None:
    """Raise BuildError for a timing that no GPU can have given, or for two of the same ``key``."""
    seen = set()
    for timing in timings:
        where = f"{path}, {timing.product}, {timing.rows} rows"
        heuristic = timing.heuristic_microseconds if isinstance(timing, ProductTiming) else timing.microseconds
        times = (timing.microseconds, heuristic)
        if timing.rows < 1 or not all(0 < time < math.inf for time in times):
            raise BuildError(
                f"{where}: expected finite numbers above 0, found {timing.rows} and {times}: measure it again"
            )
        if isinstance(timing, ProductTiming) and not _ALGORITHM.fullmatch(timing.algo):
            raise BuildError(f"{where}: expected an algorithm of 128 hexadecimal digits, found {timing.algo!r:.150}")
        if key(timing) in seen:
            raise BuildError(f"{where}: found twice: keep one of them")
        seen.add(key(timing))
