"""Which outputs of a module of the source a linear layer of the network has, for adapters, which know modules alone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from trtllm_lite.errors import EngineError, shown
from trtllm_lite.vocabulary import MAX_EXTENT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Run: TypeAlias = tuple[int, int, int]  # first row, number of rows, step


@dataclass(frozen=True)
class ModuleRows:
    """Rows of the weight of ``module``, a path such as ``model.layers.0.self_attn.qkv_proj``, in the layer's order.

    The ``runs``, one behind the other, come ``repeats`` times, each time ``period`` rows further on: where the rows of
    heads are not together, the runs are of one head. Raises EngineError for numbers that are none of rows.
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
                f"expected rows of the module {shown(self.module)}, found {shown(self.runs)}: make it again"
            )

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return self.repeats * sum(count for _, count, _ in self.runs)

    def numbers(self) -> "NDArray[np.int64]":
        """The numbers of the rows, int64 [num_rows]."""
        import numpy as np  # the C++ build, which reads the manifest's records, has none

        once = np.concatenate([first + step * np.arange(count) for first, count, step in self.runs])
        return (self.period * np.arange(self.repeats)[:, None] + once).reshape(-1)
