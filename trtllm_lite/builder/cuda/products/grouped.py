"""Products with experts, over rows sorted by expert."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from trtllm_lite.builder.cuda.products.sites import Candidates, Choice
from trtllm_lite.builder.cuda.products.timing_cache import Product
from trtllm_lite.plugins.cuda.grouped import ExpertChoice, GroupTiling, even_groups, group_configs
from trtllm_lite.plugins.cuda.tiles import TileConfig
from trtllm_lite.plugins.cuda.weight_form import form_of
from trtllm_lite.plugins.grouped_gated_linear import cuda as grouped_gated_linear
from trtllm_lite.plugins.grouped_linear import cuda as grouped_linear
from trtllm_lite.plugins.launch import Buffer, Command, Device, Extent, Operand, WeightBuffers


@dataclass(frozen=True)
class GroupedSite:
    """A :class:`Site`: y = x @ weight.T [+ bias] with the weight and bias of each row's expert.

    With two matrices per expert, y = activation(x @ weight[0].T [+ bias[0]]) * (x @ weight[1].T [+ bias[1]]), or, with
    twice as many features, activation(z) * z for both products z. x has
    each of a step's ``rows`` once for each of its experts, sorted by expert in ``groups``, up to ``max_sorted_rows``.
    """

    y: Buffer
    x: Buffer
    weight: WeightBuffers
    groups: Buffer
    dtype: str
    rows: Extent
    max_rows: int
    max_sorted_rows: int
    experts: ExpertChoice
    activation: str
    bias: Buffer | None = None

    @property
    def product(self) -> Product:
        """Implements :attr:`Site.product`."""
        _, *parts, out_features, in_features = self.weight.values.shape
        blocks = form_of(self.weight).blocks
        assert isinstance(out_features, int)
        assert isinstance(in_features, int)
        return Product(
            dtype=self.weight.values.dtype,
            x_dtype=self.dtype,
            out_dtype=self.y.dtype,
            out_features=out_features,
            in_features=in_features,
            gated=bool(parts),
            residual=False,
            bias=self.bias is not None,
            blocks="" if blocks is None else str(blocks),
            experts=str(self.experts),
        )

    @property
    def kind(self) -> Product:
        """Implements :attr:`Site.kind`."""
        return self.product

    @property
    def adds_exactly(self) -> bool:
        """Implements :attr:`Site.adds_exactly`: rows of experts are 16-bit."""
        return False

    @property
    def in_library(self) -> bool:
        """Implements :attr:`Site.in_library`."""
        return False

    @property
    def here(self) -> "GroupedSite":
        """Implements :attr:`Site.here`."""
        return self

    @property
    def group_rows(self) -> int:
        """The maximum number of rows of a group."""
        return self.experts.group_rows(self.max_rows)

    def candidates(self, max_rows: int, device: Device, splits: int | None = None) -> Candidates:
        """Implements :meth:`Site.candidates`."""
        return {str(config): config for config in self.tile_configs(max_rows, device, splits)}

    def tile_configs(self, max_rows: int, device: Device, splits: int | None = None) -> tuple[TileConfig, ...]:
        """Implements :meth:`Site.tile_configs`: for this site's groups, whatever ``max_rows``; without split-K."""
        del device, max_rows
        return group_configs(self.weight, self.group_rows) if splits in (None, 1) else ()

    def given(self, buffer: Callable[[str, Operand], Buffer], max_rows: int) -> "GroupedSite":
        """Implements :meth:`Site.given`."""
        rows = min(max_rows, self.max_rows)
        groups = replace(self.groups, shape=(self.experts.groups_ints(rows),))
        return replace(self, x=buffer("x", self.x), groups=buffer("groups", groups), max_rows=rows)

    def prepare(self) -> list[Command]:
        """Implements :meth:`Site.prepare`: fills ``groups`` evenly, before the kernel in front of the product."""
        listed = even_groups(self.groups, self.rows, self.experts, self.group_rows)
        return [listed, listed]

    def implement(self, choice: Choice, device: Device) -> list[Command]:
        """Implements :meth:`Site.implement`."""
        assert choice.config is not None
        config = replace(choice.config, reason=choice.reason)
        how = GroupTiling(self.dtype, device, self.experts, self.max_sorted_rows, self.group_rows, config)
        operands = (self.y, self.x, self.weight, self.groups, how)
        if self.product.gated:
            return [grouped_gated_linear.tiled(*operands, activation=self.activation, bias=self.bias)]
        return [grouped_linear.tiled(*operands, self.bias)]
