"""Adapts an engine with observers to calibration: observed rows of a step, and sums of their outer products."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.builder.observe import MAGNITUDES, ROWS
from trtllm_lite.network.dtypes import NUMPY
from trtllm_lite.quantize.calibration.calibrate import Observer
from trtllm_lite.quantize.calibration.statistics import Gram, Rows, ShownRows
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.sequence_runner import SequenceRunner

MAX_STEP_TOKENS = 512
_HOST_BYTES = 2 << 30  # host memory for the sums
_DEVICE_FRACTION = 0.8  # share of a card's free memory for the sums


def engine_observer(runner: SequenceRunner) -> Observer:
    """The observer for the engine of ``runner``, which :func:`build_engine` made with ``observed``."""
    return CpuObserver(runner) if runner.manifest.target.kind == "cpu" else CudaObserver(runner)


class StepRows:
    """The observed rows of one input in the last step of ``runner``. Implements :class:`ShownRows`."""

    def __init__(self, runner: SequenceRunner, name: str, size: int) -> None:
        self._runner, self._name, self._size = runner, name, size

    def __len__(self) -> int:
        return self._size

    def magnitudes(self) -> Rows:
        """Implements :meth:`ShownRows.magnitudes`."""
        return self._read(f"{MAGNITUDES}{self._name}")

    def take(self, begin: int, end: int) -> Rows:
        """Implements :meth:`ShownRows.take`."""
        return self._read(f"{ROWS}{self._name}", begin, end)

    def _read(self, output: str, begin: int = 0, end: int | None = None) -> Rows:
        dtype, rows = self._runner.output(output, begin, end)
        return rows.view(NUMPY[dtype]).astype(np.float32, copy=False)


class _EngineObserver:
    """The common part of observers of all devices."""

    def __init__(self, runner: SequenceRunner) -> None:
        self._runner = runner

    def rows(self, tokens: NDArray[np.int32], names: Sequence[str]) -> Iterator[Mapping[str, ShownRows]]:
        """Implements :meth:`Observer.rows`."""
        for part in self._runner.steps(tokens, [f"{ROWS}{name}" for name in names], MAX_STEP_TOKENS):
            yield {name: StepRows(self._runner, name, part.end - part.first) for name in names}


class CpuObserver(_EngineObserver):
    """An engine for CPUs; numpy multiplies its rows."""

    budget = _HOST_BYTES

    def gram(self, name: str, features: int) -> Gram:
        """Implements :meth:`Observer.gram`."""
        del name
        return HostGram(features)

    def gram_bytes(self, features: int) -> int:
        """Bytes of the float64 sum and of one float32 product."""
        return 12 * features**2


class CudaObserver(_EngineObserver):
    """An engine for GPUs, whose rows stay on the card: cuBLASLt multiplies them."""

    def __init__(self, runner: SequenceRunner) -> None:
        super().__init__(runner)
        self.budget = int(_DEVICE_FRACTION * core().cuda_device_memory()["free"])

    def gram(self, name: str, features: int) -> Gram:
        """Implements :meth:`Observer.gram`."""
        del features
        return DeviceGram(core().GramMatrix(self._runner.executor, f"{ROWS}{name}"))

    def gram_bytes(self, features: int) -> int:
        """Bytes of the float32 sum."""
        return 4 * features**2


class HostGram:
    """A float64 sum on the host. Implements :class:`Gram`."""

    def __init__(self, features: int) -> None:
        self._sum = np.zeros((features, features))

    def add(self, rows: ShownRows) -> None:
        """Implements :meth:`Gram.add`."""
        x = rows.take(0, len(rows))
        self._sum += x.T @ x

    def mean(self, count: int) -> Rows:
        """Implements :meth:`Gram.mean`."""
        return (self._sum / count).astype(np.float32)


class DeviceGram:
    """A float32 sum on the GPU, in ``matrix``, a ``_core.GramMatrix``. Implements :class:`Gram`."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix

    def add(self, rows: ShownRows) -> None:
        """Implements :meth:`Gram.add`; ``rows`` are those of the last step, which the matrix finds by itself."""
        del rows
        self._matrix.add()

    def mean(self, count: int) -> Rows:
        """Implements :meth:`Gram.mean`."""
        values: Rows = self._matrix.values()
        values /= np.float32(count)
        return values
