"""Timing caches: what was measured on a GPU, as data, so that a build without one makes the same choices."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path

from trtllm_lite.engine.cuda_plan import MatmulAlgorithm
from trtllm_lite.engine.records import from_json, parse_json, to_json
from trtllm_lite.errors import BuildError, EngineError, OutputError
from trtllm_lite.plugins.launch import Matmul

FORMAT_VERSION = 1
# An algorithm replaces the heuristic's first choice only if it gains more than measurements differ.
_MIN_GAIN = 0.02


@dataclass(frozen=True)
class Product:
    """A kind of matrix product: equal ones have equal timings."""

    dtype: str
    out_dtype: str
    out_features: int
    in_features: int
    residual: bool
    bias: bool

    @classmethod
    def of(cls, step: Matmul) -> "Product":
        """The kind of ``step``."""
        return cls(
            dtype=step.weight.dtype,
            out_dtype=step.y.dtype,
            out_features=step.out_features,
            in_features=step.in_features,
            residual=step.residual is not None,
            bias=step.bias is not None,
        )

    def __str__(self) -> str:
        added = " + bias" * self.bias + " + residual" * self.residual
        return f"{self.out_features} x {self.in_features}{added}, {self.dtype} to {self.out_dtype}"


@dataclass(frozen=True)
class ProductTiming:
    """The fastest algorithm (hexadecimal) for ``rows`` rows, its time, and that of what cuBLASLt proposes first."""

    product: Product
    rows: int
    algo: str
    microseconds: float
    heuristic_microseconds: float

    @property
    def gains(self) -> bool:
        """Is it faster than the proposal by more than measurements differ?"""
        return self.microseconds < (1 - _MIN_GAIN) * self.heuristic_microseconds


@dataclass(frozen=True)
class TimingCache:
    """Timings on one device; algorithms mean what they mean to one version of cuBLASLt."""

    format_version: int
    device: str
    arch: str
    cublaslt_version: int
    products: tuple[ProductTiming, ...]

    @cached_property
    def _by_product(self) -> dict[Product, list[ProductTiming]]:
        found = defaultdict(list)
        for timing in sorted(self.products, key=lambda timing: timing.rows):
            found[timing.product].append(timing)
        return dict(found)

    def timings(self, product: Product) -> list[ProductTiming]:
        """In order of rows; empty if nothing was measured."""
        return self._by_product.get(product, [])

    def algorithms(self, product: Product, arch: str) -> tuple[MatmulAlgorithm, ...]:
        """One for each number of rows that was measured; none on another architecture, or if none gains anything."""
        timings = self.timings(product) if arch == self.arch else []
        if not any(timing.gains for timing in timings):
            return ()
        return tuple(MatmulAlgorithm(timing.rows, timing.algo) for timing in timings)

    def merged(self, others: Iterable[ProductTiming]) -> "TimingCache":
        """With timings of this device added; newer ones replace older ones."""
        timings = {(timing.product, timing.rows): timing for timing in (*self.products, *others)}
        ordered = sorted(timings.values(), key=lambda timing: (astuple(timing.product), timing.rows))
        return replace(self, products=tuple(ordered))

    def save(self, path: Path) -> None:
        """Write ``path``: one timing a line, the same bytes for equal caches."""
        head = {key: value for key, value in to_json(self).items() if key != "products"}
        lines = ",\n".join("  " + json.dumps(to_json(timing)) for timing in self.products)
        body = json.dumps(head, indent=1)[:-2] + f',\n "products": [\n{lines}\n ]\n}}\n'
        try:
            path.write_text(body)
        except OSError as error:
            raise OutputError(f"cannot write the timing cache {path}: {error.strerror}: check the path") from error


def load_timing_cache(path: Path) -> TimingCache:
    """Read ``path``. Raises BuildError if it is not there, not a timing cache, or of another version."""
    try:
        cache = from_json(TimingCache, parse_json(path.read_bytes(), str(path)), str(path))
    except OSError as error:
        raise BuildError(f"cannot read the timing cache {path}: {error.strerror}: check the path") from error
    except EngineError as error:
        raise BuildError(f"{path} is not a timing cache: {error}") from error
    if cache.format_version != FORMAT_VERSION:
        raise BuildError(
            f"{path} has format_version {cache.format_version}, and this installation reads {FORMAT_VERSION}: "
            "measure it again with --output_timing_cache"
        )
    return cache
