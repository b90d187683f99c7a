"""Specialises and launches products of at most 16 rows: GEMV (cuda/gemv_linear.cuh) and split-K."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from ..launch import DTYPE_FLAGS, Device, Extent, Kernel, WeightBuffers, kernel
from .clusters import resident_grid
from .row_scales import RowScales
from .split_k import (
    CONSUMER_WARPS,
    RING_SHARE,
    ROWS_PER_TILE,
    SCALES_BYTES,
    SplitKConfig,
    fixed_number_bytes,
    split_k_config,
)
from .weight_form import WeightForm

_BARRIER_BYTES, _ZERO_BYTES = 16 * 16, 16  # barriers of the stages; zeros that stand for missing rows
_IN_FLIGHT_BYTES = 72 * 1024  # saturates an H200; more only lengthens the queues
_MOST_FIXED_TOKENS = 4  # the most rows of x that become fixed-point numbers (cuda/fixed_rows.cuh)
_MANY_CONSUMER_WARPS = 12
# The numbers of teams and of warps in a team, by bits of a weight that is dequantized in blocks (measured on an H200).
_TEAMS, _TEAM_WARPS = {8: 2, 4: 3}, {8: 4, 4: 5}
_LEAST_STAGES_UNDER_WAY = 2  # in addition to the stage that each team reads
_SHORT_COPY_BYTES = 1024  # a single warp copies shorter pieces too slowly
_MANY_BLOCKS = 120  # about as many as a GPU runs at a time


@dataclass(frozen=True)
class GemvConfig:
    """Free choices of a GEMV kernel: a stage has ``stage_k`` elements of each of ``stage_rows`` weight rows.

    ``stage_rows``: a multiple of 8. ``stream_x``: the rows of x are streamed with the weights instead of staying in
    shared memory. ``teams``: the number of teams of consumer warps, which take turns at stages of whole rows.
    """

    stage_k: int
    stage_rows: int
    stream_x: bool
    in_flight_bytes: int
    reason: str
    form: WeightForm
    teams: int = 1
    splits: ClassVar[int] = 1

    @property
    def consumer_warps(self) -> int:
        """The number of warps that multiply."""
        if self.teams > 1:
            return self.teams * _TEAM_WARPS[self.form.weight_bits]
        return _MANY_CONSUMER_WARPS if self.form.takes_long else CONSUMER_WARPS

    def in_teams(self, in_features: int, tokens: int, device: Device) -> GemvConfig:
        """This configuration, with several teams if weights are dequantized in blocks and the ring has room.

        While one team finishes a tile, others multiply: an H200 takes 44.5 us instead of 51.3 us for 8 rows of
        Qwen3-30B-A3B with FP8 experts. A stage then has whole rows, and the ring has more stages than teams.
        """
        one = replace(self, teams=1)
        if self.stream_x or not self.form.is_dequantized_in_blocks or in_features > self.stage_k:
            return one
        several = replace(self, teams=_TEAMS[self.form.weight_bits])
        stages = several.ring_bytes(in_features, tokens, device.shared_bytes) // several.stage_bytes(tokens)
        return several if stages >= several.teams + _LEAST_STAGES_UNDER_WAY else one

    @property
    def threads(self) -> int:
        """Threads of a block. Producer warps: those that share a stage, times the turns (cuda/weight_ring.cuh)."""
        short = self.form.weight_bytes(self.stage_k) < _SHORT_COPY_BYTES
        sharers, turns = 2 if self.stream_x or short else 1, 2 if self.stream_x else 1
        return 32 * (self.consumer_warps + sharers * turns)

    def ring_bytes(self, in_features: int, tokens: int, shared_bytes: int) -> int:
        """The shared memory that barriers, partial sums and x leave for the ring."""
        sums = 2 * self.consumer_warps * tokens * self.stage_rows * 4
        x_bytes = 0
        if not self.stream_x:
            x_bytes = tokens * (in_features * self.form.x_bytes + 16)
            if self.form.whole_rows and tokens <= _MOST_FIXED_TOKENS:
                assert self.form.blocks is not None
                x_bytes += fixed_number_bytes(self.form.blocks, in_features, tokens)
        scales = SCALES_BYTES if self.form.x_bytes == 1 else 0
        return shared_bytes - _BARRIER_BYTES - _ZERO_BYTES - scales - sums - x_bytes

    def stage_bytes(self, tokens: int) -> int:
        """Bytes of a stage: weights, and x if it is streamed with them."""
        row = self.form.weight_bytes(self.stage_k) + self.form.number_bytes(self.stage_k) + 16
        weights = row * self.stage_rows
        return weights + (tokens * (self.stage_k * 2 + 16) if self.stream_x else 0)


def few_rows_config(
    shape: tuple[int, ...], form: WeightForm, tokens: int, device: Device
) -> GemvConfig | SplitKConfig | None:
    """How to compute a product of at most ``tokens`` rows with a weight of ``shape`` [..., out, in].

    None if no way fits ``device``, or if the extents fit no tile.
    """
    *parts, out_features, in_features = shape
    if out_features % 8 or in_features % form.depth:
        return None
    split = split_k_config(prod(parts) * out_features, in_features, form, tokens, device)
    return split if split is not None else gemv_config(in_features, form, tokens, device)


def gemv_config(in_features: int, form: WeightForm, tokens: int, device: Device) -> GemvConfig | None:
    """The first candidate that fits ``device``; None if none does."""
    depth = form.depth if form.blocks is None else max(form.depth, form.blocks.size)
    for candidate in (each.in_teams(in_features, tokens, device) for each in _candidates(device, form)):
        if in_features % depth or candidate.stage_k % depth:
            continue
        ring = candidate.ring_bytes(in_features, tokens, device.shared_bytes)
        wanted = max(2 * candidate.stage_bytes(tokens), RING_SHARE * device.shared_bytes)
        if ring >= wanted:
            return candidate
    return None


def _candidates(device: Device, form: WeightForm) -> list[GemvConfig]:
    """Configurations with copies of 2 KB or 1 KB; then, for x that does not fit in shared memory, of 1 KB or 512 B."""
    stays = "x stays in shared memory"
    resident = [
        GemvConfig(copy * 8 // form.weight_bits, ROWS_PER_TILE, False, _IN_FLIGHT_BYTES, stays, form)
        for copy in (2048, 1024)
    ]
    if form.x_bytes == 1:
        return resident
    reason = "x is too large to stay in shared memory and travels with the weights"
    return resident + [
        GemvConfig(copy * 8 // form.weight_bits, tiles * ROWS_PER_TILE, True, device.shared_bytes, reason, form)
        for copy, tiles in ((1024, 2), (1024, 1), (512, 1))
    ]


@dataclass(frozen=True)
class FewRows:
    """A product of at most ``tokens`` rows of ``dtype``, specialised by ``config``.

    ``x_scales``: the scales of the rows of x, if weights are multiplied by rows of bytes. ``ordered``: see ``Tiling``.
    """

    tokens: int
    dtype: str
    device: Device
    config: GemvConfig | SplitKConfig
    x_scales: RowScales | None = None
    ordered: bool = False

    @property
    def x_scale(self) -> float:
        """An argument of every GEMV kernel: the scale of rows of bytes, or the least scale if each row has its own."""
        return 0.0 if self.x_scales is None else self.x_scales.value

    def kernel(self, source: str, name: str, weight: WeightBuffers, more: dict[str, int]) -> Kernel:
        """The kernel for ``weight``; ``more`` are macros in addition to those of every GEMV kernel."""
        out_features, in_features = weight.values.shape[-2:]
        assert isinstance(out_features, int)
        assert isinstance(in_features, int)
        defines = more | {
            "TL_IN": in_features,
            "TL_OUT": out_features,
            "TL_TOKENS": self.tokens,
            "TL_CONSUMER_WARPS": self.config.consumer_warps,
            "TL_TEAMS": self.config.teams,
            "TL_STAGE_K": self.config.stage_k,
            "TL_STAGE_ROWS": self.config.stage_rows,
            **self.config.form.defines,
            "TL_ROW_SCALES": int(self.x_scales is not None and self.x_scales.per_row),
            "TL_STREAM_X": int(self.config.stream_x),
            "TL_SPLITS": self.config.splits,
            "TL_RING_BYTES": self.config.ring_bytes(in_features, self.tokens, self.device.shared_bytes),
            "TL_SHARED_BYTES": self.device.shared_bytes,
            "TL_IN_FLIGHT_BYTES": self.config.in_flight_bytes,
            "TL_FP16": DTYPE_FLAGS[self.dtype],
            **({"TL_ORDERED": 1} if self.ordered else {}),
        }
        return kernel(source, name, self.config.threads, self.device.shared_bytes, defines, self.config.reason)

    def grid(self, weight: WeightBuffers) -> tuple[Extent]:
        """One block per SM, or fewer if there are fewer groups of 16-row tiles; each group belongs to a cluster."""
        rows = prod(extent for extent in weight.values.shape[:-1] if isinstance(extent, int))
        groups = -(-rows // self.config.stage_rows)
        blocks = groups * self.config.splits
        return (Extent(blocks) if blocks <= _MANY_BLOCKS else resident_grid(self.config.splits),)
