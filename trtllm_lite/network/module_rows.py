"""Records which outputs of a source module a linear layer has, for adapters, which name modules only."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from trtllm_lite.common.vocabulary import MAX_EXTENT
from trtllm_lite.errors import EngineError, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Run: TypeAlias = tuple[int, int, int]  # first row, number of rows, step


@dataclass(frozen=True)
class ModuleRows:
    """Rows of the weight of ``module``, a path such as ``model.layers.0.self_attn.qkv_proj``, in the layer's order.

    The sequence of ``runs`` is repeated ``repeats`` times, each time ``period`` rows further on: if the rows of heads
    are interleaved, the runs are those of one head. Raises EngineError for invalid row numbers.
    """

    module: str
    runs: tuple[Run, ...]
    repeats: int
    period: int

    def __post_init__(self) -> None:
        counts = (self.repeats, *(count for _, count, _ in self.runs))
        others = (self.period, *(number for first, _, step in self.runs for number in (first, step)))
        bounded = all(0 < count < MAX_EXTENT for count in counts) and all(abs(n) < MAX_EXTENT for n in others)
        if not self.runs or not bounded:
            raise EngineError(
                f"expected rows of the module {shown(self.module)}, found {shown(self.runs)}: convert again"
            )

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.repeats * sum(count for _, count, _ in self.runs)

    def numbers(self) -> "NDArray[np.int64]":
        """The numbers of the rows, int64 [num_rows]."""
        import numpy as np  # imported here, because the C++ build, which reads the manifest's records, has no numpy

        once = np.concatenate([first + step * np.arange(count) for first, count, step in self.runs])
        return (self.period * np.arange(self.repeats)[:, None] + once).reshape(-1)
