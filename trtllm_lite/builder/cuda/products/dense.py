"""Products of all rows with one weight; cuBLASLt or a tiled kernel computes them for many rows."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from trtllm_lite.builder.cuda.operands import Bias
from trtllm_lite.builder.cuda.products.sites import Candidates, Choice
from trtllm_lite.builder.cuda.products.timing_cache import CUBLASLT, Product
from trtllm_lite.plugins.cuda.peer_rows import HERE, PeerRows
from trtllm_lite.plugins.cuda.row_scales import RowScales
from trtllm_lite.plugins.cuda.tiles import TileConfig, Tiling, swap_ab_configs, tile_configs
from trtllm_lite.plugins.cuda.weight_form import form_of
from trtllm_lite.plugins.gated_linear import cuda as gated_linear
from trtllm_lite.plugins.launch import (
    Buffer,
    Command,
    Device,
    Extent,
    Matmul,
    Operand,
    Slice,
    WeightBuffers,
    features,
)
from trtllm_lite.plugins.linear import cuda as linear
from trtllm_lite.plugins.paged_attention.new_tokens import NewTokens
from trtllm_lite.plugins.rowwise.cuda import rowwise
from trtllm_lite.plugins.rowwise.expression import program_of_activation


@dataclass(frozen=True)
class DenseSite:
    """A :class:`Site`: y = activation(x @ weight.T [+ bias]) [+ residual], of up to ``max_rows`` ``rows``.

    With a weight of two matrices, y = activation(x @ weight[0].T [+ bias[0]]) * (x @ weight[1].T [+ bias[1]]).
    ``added``, the rows of adapters, is added before the activation; a product of one matrix with a residual or an
    activation has none. ``dtype`` is that of activations; x with ``x_scales`` and y with ``y_scales`` are bytes. With
    ``tokens``, y is queries, keys and values, and RoPE and the cache write are computed as well. ``peers`` says in
    which rank's memory the rows of y are stored; only tiled kernels store into another rank's memory. ``ordered``: a
    row gets the same bits from all kernels that split the depth alike.
    """

    y: Buffer
    x: Operand
    weight: WeightBuffers
    dtype: str
    rows: Extent
    max_rows: int
    activation: str
    residual: Operand | None = None
    added: Operand | None = None
    bias: Bias | None = None
    x_scales: RowScales | None = None
    y_scales: RowScales | None = None
    tokens: NewTokens | None = None
    peers: PeerRows = HERE
    ordered: bool = False

    @property
    def product(self) -> Product:
        """Implements :attr:`Site.product`: the product that makes y, without adapters."""
        out_features, in_features = self.weight.values.shape[-2:]
        blocks = form_of(self.weight).blocks
        assert isinstance(out_features, int)
        assert isinstance(in_features, int)
        return Product(
            dtype=self.weight.values.dtype,
            x_dtype=self.weight.rows or self.dtype,
            out_dtype=self._y_dtype,
            out_features=out_features,
            in_features=in_features,
            gated=len(self.weight.values.shape) == 3,
            residual=self.residual is not None,
            bias=self.bias is not None,
            blocks="" if blocks is None else str(blocks),
            row_scales=self.x_scales is not None and self.x_scales.per_row,
        )

    @property
    def kind(self) -> Hashable:
        """Implements :attr:`Site.kind`."""
        return self.product, self.chunk, self.peers is HERE

    @property
    def _y_dtype(self) -> str:
        """The type of y's elements; if y is a state of ranks, the engine's type, as states are declared as bfloat16."""
        return self.dtype if self.y.kind == "state" else self.y.dtype

    @property
    def adds_exactly(self) -> bool:
        """Implements :attr:`Site.adds_exactly`."""
        return form_of(self.weight).adds_exactly(self.product.in_features)

    @property
    def in_library(self) -> bool:
        """Implements :attr:`Site.in_library`: the weight is 16-bit, and y is stored on this rank."""
        return self.weight.scale is None and self.peers is HERE

    @property
    def here(self) -> "DenseSite":
        """Implements :attr:`Site.here`: this rank stores y."""
        if self.peers is HERE:
            return self
        x = self.x.buffer if isinstance(self.x, Slice) else self.x
        y = Buffer(f"{self.y.name}.here", self._y_dtype, (x.shape[0], self.product.out_features))
        return replace(self, y=y, peers=HERE)

    def candidates(self, max_rows: int, device: Device, splits: int | None = None) -> Candidates:
        """Implements :meth:`Site.candidates`; with ``splits`` without cuBLASLt, which promises no split-K factor.

        cuBLASLt (None) comes first if it has the product, unless the best tiled kernel's estimated time is short.
        """
        swap_ab = self._swap_ab_configs(max_rows, device, splits)
        tiled: Candidates = {str(one): one for one in (*swap_ab, *self.tile_configs(max_rows, device, splits))}
        if not self.in_library or splits is not None:
            return tiled
        first = next(iter(tiled.values()), None)
        starts_early = first is not None and first.is_short
        return {**tiled, CUBLASLT: None} if starts_early else {CUBLASLT: None, **tiled}

    def tile_configs(self, max_rows: int, device: Device, splits: int | None = None) -> tuple[TileConfig, ...]:
        """Implements :meth:`Site.tile_configs`."""
        product = self.product
        if product.gated and product.bias:
            return ()
        form = form_of(self.weight)
        extents = (product.out_features, product.in_features)
        return tile_configs(*extents, form, max_rows, product.gated, device, self.chunk, splits)

    def _swap_ab_configs(self, max_rows: int, device: Device, splits: int | None) -> tuple[TileConfig, ...]:
        product = self.product
        if product.gated and product.bias:
            return ()
        extents = (product.out_features, product.in_features)
        return swap_ab_configs(*extents, form_of(self.weight), max_rows, product.gated, device, splits)

    @property
    def fused_tokens(self) -> NewTokens | None:
        """The ``tokens`` that a tiled kernel computes in its epilogue.

        With 16-bit weights a later kernel does that work: an H200 took 5% longer for decode steps of 128 and 256 rows
        with them in the epilogue, and up to 2% less for prompts with quantized weights.
        """
        return None if self.weight.scale is None else self.tokens

    @property
    def chunk(self) -> int:
        """The number of features whose halves one tile needs together (see ``Tiling``); 0 if there is no such need."""
        return 0 if self.fused_tokens is None else self.fused_tokens.chunk

    def given(self, buffer: Callable[[str, Operand], Buffer], max_rows: int) -> "DenseSite":
        """Implements :meth:`Site.given`."""
        x, residual = buffer("x", self.x), self.residual and buffer("residual", self.residual)
        scales = self.x_scales
        if scales is not None and scales.buffer is not None:
            scales = replace(scales, buffer=buffer("x_scale", scales.buffer))
        rows = min(max_rows, self.max_rows)
        return replace(self, x=x, residual=residual, x_scales=scales, max_rows=rows, tokens=None)

    def prepare(self) -> list[Command]:
        """Implements :meth:`Site.prepare`: no commands, as arbitrary numbers will do."""
        return []

    def implement(self, choice: Choice, device: Device) -> list[Command]:
        """Implements :meth:`Site.implement`."""
        if choice.config is None:
            return self._by_cublaslt(choice.reason)
        return self._by_tiles(replace(choice.config, reason=choice.reason), device)

    def _by_cublaslt(self, reason: str) -> list[Command]:
        """Compute the product by cuBLASLt; a separate kernel applies the activation, gates or writes the cache."""
        bias, weight = None if self.bias is None else self.bias.like(self.y), self.weight.values
        more = self.residual or self.added
        if not self.product.gated and self.activation == "none":
            product = Matmul(self.x, weight, self.y, self.rows, more, bias, reason)
            return [product, *self._cache_write()]
        if not self.product.gated:
            plain = Buffer(f"{self.y.name}.plain", self.y.dtype, self.y.shape)
            product = Matmul(self.x, weight, plain, self.rows, None, bias, reason)
            return [product, rowwise(self.y, program_of_activation(self.activation), self.rows, [plain])]
        both = Buffer(f"{self.y.name}.both", self.y.dtype, (self.y.shape[0], 2 * features(self.y)))
        product = Matmul(self.x, weight, both, self.rows, more, bias, reason)
        return [product, gated_linear.gate_mul(self.y, both, self.rows, activation=self.activation)]

    def _by_tiles(self, config: TileConfig, device: Device) -> list[Command]:
        """Launch a tiled kernel."""
        how = Tiling(self.dtype, device, config, self.max_rows, self.x_scales, self.chunk, self.ordered)
        operands = (self.y, self.x, self.weight, self.rows, how)
        if self.product.gated:
            added, y_scales = self.added, self.y_scales
            return [gated_linear.tiled(*operands, activation=self.activation, added=added, y_scales=y_scales)]
        bias = None if self.bias is None else self.bias.vector()
        if self.fused_tokens is not None:
            return [self.fused_tokens.tiled(self.x, self.weight, self.rows, how, bias=bias)]
        residual = self.residual or self.added
        product = linear.tiled(*operands, self.peers, activation=self.activation, bias=bias, residual=residual)
        return [product, *self._cache_write()]

    def _cache_write(self) -> list[Command]:
        """The kernel that writes the cache, after a product that computes y alone."""
        return [] if self.tokens is None else [self.tokens.computed(self.y)]
