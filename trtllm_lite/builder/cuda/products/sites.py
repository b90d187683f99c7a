"""The products of a network that several kernels may compute, as those who choose among these see them."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from trtllm_lite.builder.cuda.products.timing_cache import Product
from trtllm_lite.plugins.cuda.tiles import TileConfig
from trtllm_lite.plugins.launch import Buffer, Command, Device, Extent, Operand

Contestants: TypeAlias = dict[str, TileConfig | None]  # by the names that timings have, None being cuBLASLt's


@dataclass(frozen=True)
class Choice:
    """The chosen way to compute a product, and the reason: a tiled kernel's ``config``, or None for cuBLASLt."""

    config: TileConfig | None
    reason: str


class Site(Protocol):
    """A product in a network, of up to ``max_rows`` ``rows`` of a step."""

    @property
    def y(self) -> Buffer:
        """What it computes."""

    @property
    def rows(self) -> Extent:
        """The rows of a step."""

    @property
    def max_rows(self) -> int:
        """The most of these."""

    @property
    def product(self) -> Product:
        """The kind of product, by which timings are found."""

    @property
    def kind(self) -> Hashable:
        """What tells sites of a program apart for which another choice may be best."""

    @property
    def in_library(self) -> bool:
        """Whether cuBLASLt computes it."""

    @property
    def here(self) -> "Site":
        """The site as timings are of it: without other ranks."""

    def contestants(self, max_rows: int, device: Device, splits: int | None = None) -> Contestants:
        """What may compute it for steps of ``max_rows`` rows, by name, and first what does if nothing is measured.

        With ``splits`` only kernels that cut the depth into so many parts, which give a row the same bits, whatever
        their tiles.
        """

    def tile_configs(self, max_rows: int, device: Device, splits: int | None = None) -> tuple[TileConfig, ...]:
        """The tiled kernels among them, best guess first; none on targets that have none."""

    def given(self, buffer: Callable[[str, Operand], Buffer], max_rows: int) -> "Site":
        """The site as one of at most ``max_rows`` rows that has y alone to compute.

        It reads what ``buffer`` gives for a role and an operand of this site.
        """

    def prepare(self) -> list[Command]:
        """What makes of given buffers what such a site reads there, where any numbers would not do."""

    def implement(self, choice: Choice, device: Device) -> list[Command]:
        """The commands that compute it as was chosen."""


Chooser: TypeAlias = Callable[[Site], Choice]
