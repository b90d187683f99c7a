"""Products of a network that several kernels may compute, as the code that chooses among kernels sees them."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from trtllm_lite.builder.cuda.products.timing_cache import Product
from trtllm_lite.plugins.cuda.tiles import TileConfig
from trtllm_lite.plugins.launch import Buffer, Command, Device, Extent, Operand

Candidates: TypeAlias = dict[str, TileConfig | None]  # by their names in timings; None stands for cuBLASLt


@dataclass(frozen=True)
class Choice:
    """The chosen way to compute a product, and the reason: a tiled kernel's ``config``, or None for cuBLASLt."""

    config: TileConfig | None
    reason: str


class Site(Protocol):
    """A product in a network, of up to ``max_rows`` ``rows`` of a step."""

    @property
    def y(self) -> Buffer:
        """The value that it computes."""

    @property
    def rows(self) -> Extent:
        """The rows of a step."""

    @property
    def max_rows(self) -> int:
        """The maximum number of rows of a step."""

    @property
    def product(self) -> Product:
        """The kind of product, by which timings are found."""

    @property
    def kind(self) -> Hashable:
        """A key that differs between the sites of a program for which different choices may be best."""

    @property
    def adds_exactly(self) -> bool:
        """Whether every order of additions gives a row the same bits."""

    @property
    def in_library(self) -> bool:
        """Whether cuBLASLt computes this product."""

    @property
    def here(self) -> "Site":
        """This product as it is measured: with all of y stored on this rank."""

    def candidates(self, max_rows: int, device: Device, splits: int | None = None) -> Candidates:
        """Candidate kernels for steps of ``max_rows`` rows, by name; the first is the choice without measurements.

        With ``splits`` there are only kernels of that split-K factor, which all give a row the same bits, whatever
        their tiles.
        """

    def tile_configs(self, max_rows: int, device: Device, splits: int | None = None) -> tuple[TileConfig, ...]:
        """The tiled kernels among the candidates, expected best first; empty on targets that have none."""

    def given(self, buffer: Callable[[str, Operand], Buffer], max_rows: int) -> "Site":
        """This site with at most ``max_rows`` rows, which computes y alone.

        It reads the buffers that ``buffer`` returns for a role and an operand of this site.
        """

    def prepare(self) -> list[Command]:
        """The commands that fill given buffers, such as lists of experts, where arbitrary numbers would not do."""

    def implement(self, choice: Choice, device: Device) -> list[Command]:
        """The commands that compute the product with the chosen kernel."""


Chooser: TypeAlias = Callable[[Site], Choice]
