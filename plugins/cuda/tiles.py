"""Specialises and launches the tiled matrix products of many rows (cuda/tiled_linear.cuh)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest
from math import ceil, gcd

from trtllm_lite.common.vocabulary import DTYPES, STORED_BYTES

from ..launch import DTYPE_FLAGS, Buffer, Device, Extent, Kernel, Operand, TensorMap, WeightBuffers, kernel
from .clusters import CLUSTER_ARCH, RESIDENT, resident_grid
from .row_scales import RowScales
from .weight_form import PAIRS8, WeightForm, form_of

TILED_ARCH = CLUSTER_ARCH
_STEP_BYTES, _BARRIER_BYTES = 128, 16  # bytes of a step in a row of x or the weight; bytes of a stage's barriers
_ROW_ALIGNMENT = 16  # in bytes, of rows of x and of the weight
_MAX_COLUMNS, _MIN_STAGES, _MOST_CANDIDATES, _SWAP_AB_CANDIDATES = 256, 3, 6, 3
_X_GROUP = 8  # rows of x that are contiguous in shared memory
_X_BOX = 32  # the most rows of x that are copied together, so that few rows are copied which a step does not have
_MAX_BOXES = 16  # the most boxes of weights in a step: one thread requests all
_RAW_BYTES = 56 * 1024  # raw stages: a block's quantized weights in flight
_THREADS = 32  # threads besides those that multiply
_DEQUANTIZER_WARPS, _MOST_DEQUANTIZER_WARPS = 6, 10  # the latter for types that take more instructions
# Swap-AB: the most rows, the tiles' columns, rows of a copy of x, warps that fill the ring, and warps that reorder x.
MOST_SWAP_AB_ROWS, SWAP_AB_COLUMNS, _SWAP_AB_COPY = 64, (256, 192, 128, 64), 32
_SWAP_AB_PRODUCERS, _REORDERING_WARPS = 2, 2
# Cycles of a stage of 4-bit weights, of each of its columns, and more for each row (fitted to 30 times of an H200);
# fixed cycles of a tile, and of an exchange of sums.
_SWAP_AB_STAGE_CYCLES, _SWAP_AB_CYCLES = 600, (4.4, 0.1)
_SWAP_AB_TILE_CYCLES, _SWAP_AB_EXCHANGE_CYCLES = 2500, 1750
_MAX_DEQUANTIZED_COLUMNS = 192  # so that accumulators leave registers for many dequantizing warps
# Clusters (row blocks, column blocks, splits).
_CLUSTERS = (
    *((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2), (1, 2, 2), (1, 4, 1), (1, 1, 4)),
    *((1, 2, 4), (1, 1, 8)),
)
CUTS = tuple(sorted({splits for _, _, splits in _CLUSTERS}))
# Up to so many cycles, the start of a kernel takes as long as its work, so kernels that start while the previous one
# runs are faster: on an H200 by 0.4 us on average over 17 products with at least this depth, plus what their neighbours
# gain.
_SHORT_CYCLES, _SHORT_DEPTH = 13_000, 2048


@dataclass(frozen=True)
class _Costs:
    """What tiles cost, as fitted to measured times of an H200.

    ``l2_bytes``, ``read_bytes`` and ``exchange_bytes``: bytes per cycle that an SM reads from the L2 cache, that it
    receives in total with copies that other SMs requested, and that it sends to them. ``step``, ``tile`` and
    ``exchange``: cycles of the shortest step, and fixed cycles of a tile and of an exchange of sums. ``element``:
    cycles of an element of a tile after its steps. ``whole_waves``: the share of an SM's idle time that is lost, as
    other SMs run at a higher clock meanwhile. ``dequantized_elements`` and ``dequantize``: elements that a warp
    dequantizes per cycle, and the fixed cycles of a step of weights that are dequantized.
    """

    l2_bytes: float
    read_bytes: float
    exchange_bytes: float
    step: float
    tile: float
    exchange: float
    whole_waves: float
    element: float = 0.0
    dequantized_elements: float = 1.0
    dequantize: float = 0.0


# Costs of weights of 16 bits, of bytes multiplied by bytes, and of weights that are dequantized. For products whose
# kernels have been measured, the heuristic's choices take 0.9%, 0.7% and 1.5% longer than the fastest on average; those
# of bytes and of dequantized weights take 0.7% and 1.6% longer for shapes that a fit did not see.
_OF_16_BITS = _Costs(44, 66, 14, 200, 2500, 1300, 0.56)
_OF_BYTES = _Costs(35, 69, 10, 255, 4500, 875, 0.65, element=0.5)
_OF_DEQUANTIZED = _Costs(46, 45, 14, 146, 1350, 875, 0.48, dequantized_elements=2.1, dequantize=200)


@dataclass(frozen=True)
class TileConfig:
    """Free choices of a tiled matrix product: a tile is ``rows`` of x by ``columns`` rows of the weight.

    In a cluster, ``row_blocks`` tiles with the same columns share their weights, ``column_blocks`` tiles with the same
    rows share their rows of x, and ``splits`` such groups each take a part of the depth. ``swap_ab``: the kernel is
    that of cuda/swap_ab_linear.cuh. ``is_short``: libraries, which start only after the previous kernel has ended, are
    probably slower.
    """

    rows: int
    columns: int
    row_blocks: int
    column_blocks: int
    splits: int
    reason: str
    is_short: bool = field(default=False, compare=False)
    swap_ab: bool = False

    @property
    def cluster(self) -> int:
        """The number of blocks in a cluster."""
        return self.row_blocks * self.column_blocks * self.splits

    def __str__(self) -> str:
        """The choices without their reason; equal choices have equal texts in every version."""
        blocks = f"{self.row_blocks}x{self.column_blocks}x{self.splits}"
        return f"{self.rows}x{self.columns} tiles in clusters of {blocks}" + " by swap-AB" * self.swap_ab


def dequantizer_warps(form: WeightForm, rows: int) -> int:
    """Warps that dequantize weights for tiles of ``rows`` rows (kDequantizers of cuda/tile_ring.cuh)."""
    return _MOST_DEQUANTIZER_WARPS if form.is_dequantized_in_blocks and rows == 64 else _DEQUANTIZER_WARPS


def swap_ab_threads(config: TileConfig, form: WeightForm) -> int:
    """Threads of a block of a swap-AB kernel (kSwapAbThreads of cuda/swap_ab_linear.cuh)."""
    return 2 * config.columns + 32 * (_SWAP_AB_PRODUCERS + (_REORDERING_WARPS if form.layout == PAIRS8 else 0))


def max_columns(form: WeightForm, rows: int) -> int:
    """The columns of the widest tiles of ``rows`` rows."""
    return (
        _MAX_DEQUANTIZED_COLUMNS
        if form.is_dequantized and (rows > 64 or form.is_dequantized_in_blocks)
        else _MAX_COLUMNS
    )


@cache  # called again for every layer
def tile_configs(
    out_features: int,
    in_features: int,
    form: WeightForm,
    max_rows: int,
    gated: bool,
    device: Device,
    chunk: int = 0,
    splits: int | None = None,
) -> tuple[TileConfig, ...]:
    """Candidates for at most ``max_rows`` rows, the heuristic's choice first.

    There are none where the target or the extents fit no tile. ``out_features`` are those of y; a gated product has
    twice as many weight rows. ``chunk``: see :class:`Tiling`. With ``splits``, all candidates split the depth into
    that many parts. The split alone determines the order in which products are added, so that a row has the same bits
    for any tiles and any number of rows.
    """
    rows = (in_features * form.x_bytes, form.weight_bytes(in_features))
    if device.arch != TILED_ARCH or any(row % _ROW_ALIGNMENT for row in rows) or out_features % 8:
        return ()
    problem = _Problem(out_features, in_features, form, max_rows, 2 if gated else 1, chunk)
    wanted = (config for config in problem.configs() if splits in (None, config.splits))
    fitting = [config for config in wanted if problem.fits(config, device)]
    best = sorted(fitting, key=lambda config: (problem.cycles(config), config.cluster))[:_MOST_CANDIDATES]
    return tuple(replace(config, reason=problem.reason(config), is_short=problem.is_short(config)) for config in best)


@cache
def swap_ab_configs(
    out_features: int,
    in_features: int,
    form: WeightForm,
    max_rows: int,
    gated: bool,
    device: Device,
    splits: int | None = None,
) -> tuple[TileConfig, ...]:
    """Candidates of swap-AB for at most ``max_rows`` rows, the heuristic's choice first; arguments as in tile_configs.

    Those with ``splits`` give a row the bits that tiles with so many give: tensor cores add the products of 16
    elements of a row in one order, whichever operand has them. So x must not be reordered.

    There are none for more than MOST_SWAP_AB_ROWS rows, or for a weight that is not dequantized in blocks.
    """
    if device.arch != TILED_ARCH or not form.in_blocks or max_rows > MOST_SWAP_AB_ROWS or out_features % _X_GROUP:
        return ()
    if splits is not None and form.layout == PAIRS8:
        return ()
    problem = _Problem(out_features, in_features, form, max_rows, 2 if gated else 1, 0)
    clusters = [cut for cut in CUTS if in_features % (problem.stage_depth * cut) == 0 or cut == 1]
    configs = [
        TileConfig(MOST_SWAP_AB_ROWS, columns, 1, 1, cut, "", swap_ab=True)
        for columns in SWAP_AB_COLUMNS
        for cut in clusters
        if splits in (None, cut)
    ]
    best = sorted(configs, key=lambda config: (problem.swap_ab_cycles(config), config.cluster))[:_SWAP_AB_CANDIDATES]
    return tuple(replace(config, reason=problem.reason(config)) for config in best)


def _stage_bytes(config: TileConfig) -> int:
    return (config.rows + config.columns) * _STEP_BYTES + _BARRIER_BYTES


@dataclass(frozen=True)
class _Problem:
    """A product of ``parts`` weight matrices of ``out_features`` rows each."""

    out_features: int
    in_features: int
    form: WeightForm
    max_rows: int
    parts: int
    chunk: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of x."""
        return self.in_features * self.form.x_bytes

    def box_rows(self, config: TileConfig) -> int:
        """Weight rows of a box: those that are contiguous in a tile, or a block's share of the tile."""
        run = config.columns // self.parts
        if self.chunk and config.swap_ab:
            run = gcd(config.columns, self.chunk) // 2
        elif self.chunk:
            slice_columns = 16 * ceil(config.columns / (16 * config.splits))
            run = gcd(config.columns, slice_columns, self.chunk) // 2
        return min(run, config.columns // config.row_blocks)

    def raw_stages(self, columns: int) -> int:
        """The number of raw stages of weights to be dequantized; 0 if weights are multiplied as stored."""
        return max(2, ceil(_RAW_BYTES / (columns * _STEP_BYTES))) if self.form.is_dequantized else 0

    def raw_bytes(self, columns: int) -> int:
        """Shared memory of the raw stages, with the scales and offsets of their blocks."""
        elements, blocks = _STEP_BYTES * 8 // self.form.weight_bits, self.form.blocks
        numbers = 0 if blocks is None else max(1, elements // blocks.size) * blocks.bytes_per_block
        return self.raw_stages(columns) * (columns * (_STEP_BYTES + numbers) + _BARRIER_BYTES)

    def configs(self) -> Iterator[TileConfig]:
        """Yield, for every cluster and number of waves, the narrowest tiles that need no more, and the widest tiles."""
        rows = 64 if self.max_rows <= 64 else 128
        for row_blocks, column_blocks, splits in _CLUSTERS:
            waves = 0
            widths = range(_MAX_COLUMNS, 16, -16)
            configs = [TileConfig(rows, columns, row_blocks, column_blocks, splits, "") for columns in widths]
            configs = [config for config in configs if config.columns // self.box_rows(config) <= _MAX_BOXES]
            for config, narrower in zip_longest(configs, configs[1:]):
                if self.waves(config) > waves or narrower is None or self.waves(narrower) > self.waves(config):
                    waves = self.waves(config)
                    yield config

    def stages(self, config: TileConfig, device: Device) -> int:
        """The number of stages: as many as fit, but for blocks with one tile no more than the tile has steps.

        The sums of blocks that split the depth use the memory of the stages.
        """
        room = (device.shared_bytes - self.raw_bytes(config.columns)) // _stage_bytes(config)
        if config.splits == 1:
            return room
        steps, of_slice = ceil(self.row_bytes / (_STEP_BYTES * config.splits)), 16 * config.splits
        sums = 4 * config.rows * of_slice * ceil(config.columns / of_slice)
        return min(room, max(steps, _MIN_STAGES, ceil(sums / _stage_bytes(config))))

    def shared_bytes(self, config: TileConfig, device: Device) -> int:
        """Shared memory of raw and other stages; the rest is left to blocks of the previous and the next kernel."""
        return self.raw_bytes(config.columns) + self.stages(config, device) * _stage_bytes(config)

    def fits(self, config: TileConfig, device: Device) -> bool:
        """Whether the kernel's static assertions hold."""
        part_bytes = self.row_bytes if not self.form.is_dequantized else self.form.weight_bytes(self.in_features)
        return (
            config.row_blocks <= ceil(self.max_rows / config.rows)
            and (config.splits == 1 or part_bytes % (_STEP_BYTES * config.splits) == 0)
            and self.box_rows(config) % 8 == 0
            and (config.splits == 1 or self.parts == 1)
            and self.stages(config, device) >= _MIN_STAGES
            and not (self.form.is_dequantized and config.columns > max_columns(self.form, config.rows))
        )

    def blocks(self, config: TileConfig) -> int:
        """The number of blocks if each has one tile, in whole clusters."""
        down = ceil(self.max_rows / (config.rows * config.row_blocks))
        across = ceil(self.out_features / (config.columns // self.parts * config.column_blocks))
        return down * across * config.cluster

    def waves(self, config: TileConfig) -> int:
        """The number of tiles that the busiest SM computes one after another."""
        return ceil(self.blocks(config) / RESIDENT[config.cluster])

    def cycles(self, config: TileConfig) -> float:
        """Estimate the cycles of the busiest SM's tiles, without reading weights from memory (about equal for all)."""
        costs = self.costs
        products = config.rows * config.columns / 32
        x_rows = min(config.rows, self.max_rows)
        l2_bytes = (x_rows / config.column_blocks + config.columns / config.row_blocks) * _STEP_BYTES
        read_bytes = (x_rows + config.columns) * _STEP_BYTES
        dequantized = costs.dequantized_elements * dequantizer_warps(self.form, config.rows)
        dequantizing = config.columns * 64 / dequantized + costs.dequantize if self.form.is_dequantized else 0
        step = max(products, l2_bytes / costs.l2_bytes, read_bytes / costs.read_bytes, dequantizing, costs.step)
        steps = ceil(self.row_bytes / _STEP_BYTES) / config.splits
        tile = steps * step + costs.tile + config.rows * config.columns / config.splits * costs.element
        if config.splits > 1:
            sums = config.rows * config.columns * 4 * (config.splits - 1) / config.splits
            tile += costs.exchange + sums / costs.exchange_bytes
        share = self.blocks(config) / RESIDENT[config.cluster]
        waves = ceil(share) * costs.whole_waves + share * (1 - costs.whole_waves)
        return waves * tile

    @property
    def costs(self) -> _Costs:
        """What tiles of the product cost."""
        if self.form.is_dequantized:
            return _OF_DEQUANTIZED
        return _OF_BYTES if self.form.x_bytes == 1 else _OF_16_BITS

    @property
    def stage_depth(self) -> int:
        """Elements of a row in a stage of weights as stored."""
        return _STEP_BYTES * 8 // self.form.weight_bits

    def swap_ab_cycles(self, config: TileConfig) -> float:
        """Like :meth:`cycles`, for a swap-AB kernel."""
        of_column, of_row = _SWAP_AB_CYCLES
        stage = _SWAP_AB_STAGE_CYCLES + config.columns * (of_column + of_row * self.max_rows)
        tile = ceil(self.in_features / (self.stage_depth * config.splits)) * stage + _SWAP_AB_TILE_CYCLES
        return self.waves(config) * (tile + (_SWAP_AB_EXCHANGE_CYCLES if config.splits > 1 else 0))

    def is_short(self, config: TileConfig) -> bool:
        """Whether ``config`` starts early enough to beat a library."""
        return self.in_features >= _SHORT_DEPTH and self.cycles(config) <= _SHORT_CYCLES

    def reason(self, config: TileConfig) -> str:
        """Why ``config`` is a candidate."""
        return f"{self.blocks(config)} tiles in {self.waves(config)} waves"


@dataclass(frozen=True)
class Tiling:
    """A tiled product of at most ``max_rows`` rows, specialised by ``config``; ``dtype`` is that of activations.

    ``x_scales``: the scales of the rows of x, if these are bytes. ``chunk``: the first and the second half of this many
    features, or of a divisor of at least 16, go to the same threads (RoPE rotates them together); 0 if none need to.
    ``ordered``: kernels for any number of rows give a row the same bits, if they split the depth into equal parts.
    """

    dtype: str
    device: Device
    config: TileConfig
    max_rows: int
    x_scales: RowScales | None = None
    chunk: int = 0
    ordered: bool = False

    @property
    def x_box(self) -> int:
        """Rows of x that are copied together, in whole groups for wgmma: at most a block's share of a tile's rows."""
        needed = min(self.config.rows, self.max_rows)
        if self.config.swap_ab:
            return max(_X_GROUP, 1 << (needed - 1).bit_length())
        return min(_X_BOX, _X_GROUP * ceil(needed / (_X_GROUP * self.config.column_blocks)))

    @property
    def x_copy(self) -> int:
        """Rows of x that a copy of the copy engine has: swap-AB leaves out a half that a step does not have."""
        if self.config.swap_ab and self.ordered and self.max_rows < _X_GROUP:
            return self.max_rows  # the copy engine takes longer to fill rows with zeros than to copy them
        return min(self.x_box, _SWAP_AB_COPY) if self.config.swap_ab else self.x_box

    @property
    def x_boxes(self) -> int:
        """The most boxes of rows of x that a step has; blocks side by side request them in turn."""
        return ceil(min(self.config.rows, self.max_rows) / self.x_box)

    @property
    def row_scales(self) -> Buffer | None:
        """The scales of the rows of x, if each has its own."""
        return None if self.x_scales is None else self.x_scales.buffer

    @property
    def x_scale(self) -> float:
        """The scale of all rows of x."""
        return 0.0 if self.x_scales is None else self.x_scales.value

    def kernel(self, source: str, name: str, weight: WeightBuffers, more: dict[str, int]) -> Kernel:
        """The kernel for ``weight`` [..., out, in]; ``more`` are macros in addition to those of every tiled product."""
        config, problem = self.config, self._problem(weight)
        shared_bytes = problem.shared_bytes(config, self.device)
        out_features, in_features = _extents(weight.values)[-2:]
        defines = more | {
            "TL_IN": in_features,
            "TL_OUT": out_features,
            "TL_TILE_ROWS": config.rows,
            "TL_TILE_COLUMNS": config.columns,
            "TL_ROW_BLOCKS": config.row_blocks,
            "TL_COLUMN_BLOCKS": config.column_blocks,
            "TL_SPLITS": config.splits,
            "TL_X_BOX": self.x_box,
            "TL_X_BOXES": self.x_boxes,
            "TL_SHARED_BYTES": shared_bytes,
            "TL_FP16": DTYPE_FLAGS[self.dtype],
            "TL_RAW_STAGES": problem.raw_stages(config.columns),
            "TL_ROW_SCALES": int(self.row_scales is not None),
            **problem.form.defines,
            **({"TL_ORDERED": 1} if self.ordered else {}),
        }
        if config.swap_ab:
            shared_bytes, threads = self.device.shared_bytes, swap_ab_threads(config, problem.form)
            if self.x_copy < _X_GROUP:
                defines["TL_X_ROWS"] = self.x_copy
            defines |= {"TL_SHARED_BYTES": shared_bytes}
            return kernel(source, name, threads, shared_bytes, defines, config.reason)
        warps = dequantizer_warps(problem.form, config.rows)
        threads = config.rows * 2 + (2 * _THREADS + 32 * warps if problem.form.is_dequantized else _THREADS)
        return kernel(source, name, threads, shared_bytes, defines, config.reason)

    def grid(self, weight: WeightBuffers) -> tuple[Extent]:
        """One block per tile, or as many as run at a time if there are more tiles and a cluster may have several."""
        problem = self._problem(weight)
        blocks, cluster = problem.blocks(self.config), self.config.cluster
        if self.config.splits > 1 or blocks <= RESIDENT[cluster]:
            return (Extent(blocks),)
        return (resident_grid(cluster),)

    def maps(self, x: Operand, weight: WeightBuffers) -> tuple[TensorMap, TensorMap]:
        """The tensor maps of x and the weight, by which the kernel copies boxes."""
        problem, config = self._problem(weight), self.config
        box = problem.box_rows(config)
        item = STORED_BYTES[DTYPES[weight.values.dtype].stored]
        items, rows = problem.form.weight_bytes(problem.in_features) // item, problem.out_features * problem.parts
        return (
            TensorMap(x, self.max_rows, problem.in_features, self.x_copy, _STEP_BYTES // problem.form.x_bytes),
            TensorMap(weight.values, rows, items, box, _STEP_BYTES // item),
        )

    def _problem(self, weight: WeightBuffers) -> _Problem:
        *parts, out_features, in_features = _extents(weight.values)
        return _Problem(out_features, in_features, form_of(weight), self.max_rows, parts[0] if parts else 1, self.chunk)


def _extents(weight: Buffer) -> list[int]:
    extents = [extent for extent in weight.shape if isinstance(extent, int)]
    assert len(extents) == len(weight.shape)
    return extents
