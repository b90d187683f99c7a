"""Split-K products of a few rows: the blocks of a cluster split the depth (cuda/split_k_linear.cuh)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from ..launch import Device
from .clusters import CLUSTER_ARCH, RESIDENT
from .weight_form import BlockNumbers, WeightForm

CONSUMER_WARPS, ROWS_PER_TILE = 8, 16
_FIXED_BLOCK = 128  # the most elements of a block of x (cuda/fixed_rows.cuh)
_PRODUCING_WARPS, _WARPGROUPS = 4, 2
_MOST_TOKENS = 16
# For fewer rows, the GEMV kernel is faster, as x is small compared to the weights (measured on an H200).
_LEAST_TOKENS, _LEAST_TOKENS_OF_16_BITS = 4, 8
SCALES_BYTES = 64  # scales of the rows of x, if these are quantized
_BARRIER_BYTES = 16 * 16 + 32  # barriers of the stages and the cluster
_COPY_BYTES, _LEAST_STAGES = 512, 3
_IN_FLIGHT_BYTES = 100 * 1024
# A ring below this share of the shared memory cannot use the whole bandwidth (80 KB of 227 on an H200).
RING_SHARE = 0.35
_TILES = (4, 3, 2)  # tiles of 16 rows in a stage
_GROUP_BYTES = 40 * 1024  # what a block could read while it sends and adds up the sums of a group (an H200)


@dataclass(frozen=True)
class SplitKConfig:
    """Free choices: ``splits`` blocks that each take a part of every row, in stages of ``stage_k`` elements."""

    stage_k: int
    tiles_per_stage: int
    splits: int
    in_flight_bytes: int
    reason: str
    form: WeightForm
    stream_x: ClassVar[bool] = False
    consumer_warps: ClassVar[int] = CONSUMER_WARPS
    teams: ClassVar[int] = 1
    threads: ClassVar[int] = 32 * (CONSUMER_WARPS + _PRODUCING_WARPS)

    @property
    def stage_rows(self) -> int:
        """Rows of the weight in a stage."""
        return self.tiles_per_stage * ROWS_PER_TILE

    def ring_bytes(self, in_features: int, tokens: int, shared_bytes: int) -> int:
        """The shared memory that barriers, sums and a part of x leave for the ring."""
        part, of_rows = in_features // self.splits, 2 * self.splits * _MOST_TOKENS * 4
        sums = 2 * _WARPGROUPS * self.splits * -(-tokens // self.splits) * self.tiles_per_stage * 8 * 8
        first = -(-(_BARRIER_BYTES + SCALES_BYTES + of_rows + sums) // 1024) * 1024
        blocks = self.form.blocks
        columns, item = (tokens, self.form.x_bytes) if blocks is None else (2 * tokens, 1)
        x_bytes = -(-part * item // 128) * 128 * max(8, columns)
        numbers = 0 if blocks is None else fixed_number_bytes(blocks, part, tokens)
        return shared_bytes - first - x_bytes - numbers

    def stage_bytes(self) -> int:
        """Bytes of a stage of weights."""
        row = self.form.weight_bytes(self.stage_k) + self.form.number_bytes(self.stage_k) + 16
        return row * self.stage_rows

    def cost(self, rows: int, in_features: int, tokens: int) -> float:
        """The bytes that a block could read in the time that the busiest takes, for a weight [rows, in_features].

        Each tile of a stage has warps of its own, so a stage of fewer tiles takes as long as one of the most tiles.
        """
        clusters, part = RESIDENT[self.splits] // self.splits, in_features // self.splits
        groups = -(-rows // (self.stage_rows * clusters))
        of_group = self.form.weight_bytes(part) * _TILES[0] * ROWS_PER_TILE + _GROUP_BYTES
        return groups * of_group + part * tokens * 2


def fixed_number_bytes(blocks: BlockNumbers, in_features: int, tokens: int) -> int:
    """Bytes of the scales of the blocks of x, if rows become fixed-point numbers (cuda/fixed_rows.cuh)."""
    count = in_features // min(blocks.size, _FIXED_BLOCK) * (-(-tokens // 4) * 4)
    return count * 4 * (1 + blocks.offsets)


def split_k_config(rows: int, in_features: int, form: WeightForm, tokens: int, device: Device) -> SplitKConfig | None:
    """The cheapest configuration with four or eight splits or, where their copies would be too short, with two.

    None where other kernels are as fast, or if nothing fits.
    """
    least = _LEAST_TOKENS_OF_16_BITS if form.weight_bits == 16 else _LEAST_TOKENS
    if device.arch != CLUSTER_ARCH or tokens < least or form.is_dequantized_in_blocks:
        return None
    depth = form.depth if form.blocks is None else max(_FIXED_BLOCK, form.blocks.size)
    stage_k = _COPY_BYTES * 8 // form.weight_bits
    if stage_k % depth:
        return None
    for choices in ((4, 8), (2,)):
        configs = [
            SplitKConfig(stage_k, tiles, splits, _IN_FLIGHT_BYTES, f"each of {splits} blocks takes a part", form)
            for splits, tiles in product(choices, _TILES)
            if in_features % (splits * depth) == 0 and form.weight_bytes(in_features // splits) >= _COPY_BYTES
        ]
        fitting = [config for config in configs if _fits(config, in_features, tokens, device)]
        if fitting:
            return min(fitting, key=lambda config: config.cost(rows, in_features, tokens))
    return None


def _fits(config: SplitKConfig, in_features: int, tokens: int, device: Device) -> bool:
    wanted = max(_LEAST_STAGES * config.stage_bytes(), RING_SHARE * device.shared_bytes)
    return config.ring_bytes(in_features, tokens, device.shared_bytes) >= wanted
