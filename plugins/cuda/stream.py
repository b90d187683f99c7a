"""Specialises and launches the streaming matrix products of a few rows (cuda/stream_linear.cuh)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..launch import DTYPE_FLAGS, Buffer, Device, Extent, Kernel, WeightBuffers, kernel
from .clusters import CLUSTER_ARCH, resident_grid
from .row_scales import RowScales
from .weight_form import BlockNumbers, WeightForm

_THREADS = 288
_SCALES_BYTES = 64  # of the rows of x, where they become bytes
_CONSUMER_WARPS, _ROWS_PER_TILE = 8, 16
_BARRIER_BYTES, _ZERO_BYTES = 17 * 16, 16  # of the stages and the cluster; what is read past the last row
_IN_FLIGHT_BYTES = 72 * 1024  # saturates an H200; more only lengthens the queues
# A ring below this share of the shared memory starves the memory (80 KB of 227 on an H200).
_RING_SHARE = 0.35
_FIXED_BLOCK, _MOST_FIXED_TOKENS = 128, 4  # elements of a block of x, and its rows, at most (cuda/fixed_rows.cuh)
_MANY_BLOCKS = 120  # about what a card holds at a time


@dataclass(frozen=True)
class StreamConfig:
    """Free choices of a streaming matrix product; ``stage_k`` is the depth of a stage in elements.

    ``stream_x``: the rows of x travel with the weights instead of staying in shared memory. ``splits``: blocks of a
    cluster, each of which takes a part of every row.
    """

    stage_k: int
    tiles_per_stage: int
    stream_x: bool
    splits: int
    in_flight_bytes: int
    reason: str
    form: WeightForm

    def ring_bytes(self, in_features: int, tokens: int, shared_bytes: int) -> int:
        """The shared memory that barriers, partial sums and x leave for the ring."""
        sums = 2 * _CONSUMER_WARPS * tokens * _ROWS_PER_TILE * self.tiles_per_stage * 4
        part, x_bytes = in_features // self.splits, 0
        if not self.stream_x:
            x_bytes = tokens * (part * self.form.x_bytes + 16)
            if self.form.blocks is not None and tokens <= _MOST_FIXED_TOKENS:
                x_bytes += _fixed_number_bytes(self.form.blocks, part, tokens)
        scales = _SCALES_BYTES if self.form.x_bytes == 1 else 0
        return shared_bytes - _BARRIER_BYTES - _ZERO_BYTES - scales - sums - x_bytes

    def stage_bytes(self, tokens: int) -> int:
        """Bytes of a stage: weights, and x where it travels with them."""
        row = self.form.weight_bytes(self.stage_k) + self.form.number_bytes(self.stage_k) + 16
        weights = row * _ROWS_PER_TILE * self.tiles_per_stage
        return weights + (tokens * (self.stage_k * 2 + 16) if self.stream_x else 0)


def _fixed_number_bytes(blocks: BlockNumbers, in_features: int, tokens: int) -> int:
    """Bytes of the numbers of the blocks of x (cuda/fixed_rows.cuh)."""
    count = in_features // min(blocks.size, _FIXED_BLOCK) * (-(-tokens // 4) * 4)
    return count * 4 * (1 + blocks.offsets)


def stream_config(
    out_features: int, in_features: int, form: WeightForm, tokens: int, device: Device
) -> StreamConfig | None:
    """The first candidate that fits ``device``; None if none does, or if the extents fit no tile."""
    if out_features % 8 or in_features % form.depth:
        return None
    for candidate in _candidates(device, form):
        depth = form.depth if form.blocks is None else max(form.depth, form.blocks.size)
        if in_features % (candidate.splits * depth) or candidate.stage_k % depth:
            continue
        ring = candidate.ring_bytes(in_features, tokens, device.shared_bytes)
        wanted = max(2 * candidate.stage_bytes(tokens), _RING_SHARE * device.shared_bytes)
        if ring >= wanted:
            return candidate
    return None


def _candidates(device: Device, form: WeightForm) -> list[StreamConfig]:
    """Copies of 2 KB, or else of 1.

    Where x is too large to stay in a block's shared memory, a cluster's blocks share rows of bytes; others travel, with
    copies of half of that, too.
    """
    parts = (1, 2, 4) if form.x_bytes == 1 and device.arch == CLUSTER_ARCH else (1,)
    stays = {1: "x stays in shared memory"}
    resident = [
        StreamConfig(
            copy * 8 // form.weight_bits,
            1,
            stream_x=False,
            splits=splits,
            in_flight_bytes=_IN_FLIGHT_BYTES,
            reason=stays.get(splits, f"x stays in the shared memory of {splits} blocks"),
            form=form,
        )
        for splits in parts
        for copy in (2048, 1024)
    ]
    if form.x_bytes == 1:
        return resident
    return resident + [
        StreamConfig(
            copy * 8 // form.weight_bits,
            tiles,
            stream_x=True,
            splits=1,
            in_flight_bytes=device.shared_bytes,
            reason="x is too large to stay in shared memory and travels with the weights",
            form=form,
        )
        for copy, tiles in ((1024, 2), (1024, 1), (512, 1))
    ]


@dataclass(frozen=True)
class Streaming:
    """A streaming product of at most ``tokens`` rows of ``dtype``, specialised by ``config``.

    ``x_scales`` are those under which rows become bytes, where weights are multiplied with such; ``rounded`` says that
    they are bytes already.
    """

    tokens: int
    dtype: str
    device: Device
    config: StreamConfig
    x_scales: RowScales | None = None
    rounded: bool = False

    @property
    def scales(self) -> tuple[float, Buffer | None]:
        """Two arguments of every such kernel: the scale of x, or the least; and those of the rows that there are."""
        if self.x_scales is None:
            return 0.0, None
        return self.x_scales.value, self.x_scales.buffer if self.rounded else None

    def kernel(self, source: str, name: str, weight: WeightBuffers, more: dict[str, int]) -> Kernel:
        """The kernel for ``weight``; ``more`` are the macros besides those of every such product."""
        out_features, in_features = weight.values.shape[-2:]
        assert isinstance(out_features, int)
        assert isinstance(in_features, int)
        defines = more | {
            "TL_IN": in_features,
            "TL_OUT": out_features,
            "TL_TOKENS": self.tokens,
            "TL_STAGE_K": self.config.stage_k,
            "TL_TILES_PER_STAGE": self.config.tiles_per_stage,
            **self.config.form.defines,
            "TL_ROW_SCALES": int(self.x_scales is not None and self.x_scales.per_row),
            "TL_ROUNDED_X": int(self.rounded),
            "TL_STREAM_X": int(self.config.stream_x),
            "TL_SPLITS": self.config.splits,
            "TL_SHARED_BYTES": self.device.shared_bytes,
            "TL_IN_FLIGHT_BYTES": self.config.in_flight_bytes,
            "TL_FP16": DTYPE_FLAGS[self.dtype],
        }
        return kernel(source, name, _THREADS, self.device.shared_bytes, defines, self.config.reason)

    def grid(self, weight: WeightBuffers) -> tuple[Extent]:
        """One block per SM; fewer where there are fewer groups of 16-row tiles, each of which is a cluster's."""
        rows = prod(extent for extent in weight.values.shape[:-1] if isinstance(extent, int))
        groups = -(-rows // (_ROWS_PER_TILE * self.config.tiles_per_stage))
        blocks = groups * self.config.splits
        return (Extent(blocks) if blocks <= _MANY_BLOCKS else resident_grid(self.config.splits),)
