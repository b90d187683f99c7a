"""Specialises products with experts (cuda/chosen_experts.cuh): GEMV kernels for few rows, tiled ones for many."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, prod
from typing import TYPE_CHECKING

from trtllm_lite.common.vocabulary import DTYPES, STORED_BYTES

from ..launch import Buffer, Device, Extent, Kernel, Launch, TensorMap, WeightBuffers, kernel, launch
from .clusters import RESIDENT, resident_grid
from .few_rows import RING_SHARE, ROWS_PER_TILE, FewRows, GemvConfig, gemv_config
from .tiles import MOST_SWAP_AB_ROWS, SWAP_AB_COLUMNS, TILED_ARCH, TileConfig, Tiling, max_columns
from .weight_form import WeightForm, form_of

if TYPE_CHECKING:
    from .lowering import Lowering

MAX_EXPERTS, MAX_TOP_K = 1024, 32  # limits of Router's kernels, shared experts included
MOST_LISTED_ROWS = 16  # kMostListedRows of router/chosen_list.cuh
_MOST_DEQUANTIZED_ROWS = 8  # the most for GEMV kernels; swap-AB kernels take more rows
EIGHT = 8  # rows of a weight whose block scales are contiguous
_FEATURES_PER_TILE = 8  # of GroupedGatedLinear: a tile has two weight rows for each
HEADER, GROUP_INTS = 4, 4  # ints: of a list's header, an ExpertRows
ROW_THREADS = 128  # threads per block of kernels that move rows; a thread has eight features
_MOST_STAGE_BYTES = 2048  # bytes of a weight row in a stage
_IN_FLIGHT_BYTES = 150 * 1024  # of kernels of GroupedLinear with one tile per stage
_IN_FLIGHT_BYTES_OF_PAIRS = 100 * 1024  # with two tiles per stage, and where some stages are not full
_STEP_BYTES = 128
_ALIGNED = 128  # the alignment of a kernel's dynamic shared memory
_MOST_IMBALANCE = 1.05  # of what the busiest block reads, by the average
_GROUP_SIZES = (16, 32, 64, 128)
_COLUMNS, _NUM_WIDTHS = (256, 192, 128, 96), 3  # rows of the weight in a tile, and how many widths are timed
_X_WEIGHT = 0.25  # the cost of a byte of x relative to a byte of the weight, for one tile of swap-AB


@dataclass(frozen=True)
class ExpertChoice:
    """The number of ``experts``, and the number ``top_k`` of experts that a row has.

    ``local``: the number of experts on a rank; each of them is divided among ``moe_tp_size`` ranks. The last
    ``shared`` experts are those of all rows, the last of a row's ``top_k``; rows choose the others.
    """

    experts: int
    top_k: int
    local: int
    moe_tp_size: int = 1
    shared: int = 0

    def __str__(self) -> str:
        """The choice in words, which identifies it in timings of products."""
        here = "" if self.local == self.experts else f", {self.local} of them here"
        beside = f" and {self.shared} shared" if self.shared else ""
        return f"{self.top_k - self.shared} of {self.experts - self.shared} experts{beside}{here}"

    @property
    def defines(self) -> dict[str, int]:
        """The macros of all kernels of mixtures."""
        return {"TL_EXPERTS": self.experts, "TL_TOP_K": self.top_k}

    def list_bytes(self, rows: int) -> int:
        """The size of a ChosenList (router/chosen_list.cuh) for ``rows`` rows."""
        choices, of_expert = rows * self.top_k, 8 + 4 * ceil(rows / 4)
        return of_expert * min(self.local, choices) + 8 * (choices + rows) + 4 * ceil(self.local / 32) + 4

    def group_rows(self, max_rows: int) -> int:
        """The most rows of a group: about twice the average of an expert that rows choose.

        Most experts then have one group. Shared experts have many, which read a weight at about the same time.
        """
        mean = max_rows * (self.top_k - self.shared) / (self.experts - self.shared)
        return next((size for size in _GROUP_SIZES if size >= 2 * mean), _GROUP_SIZES[-1])

    def groups_ints(self, max_rows: int) -> int:
        """The size of a list of ExpertRows for up to ``max_rows`` rows."""
        return HEADER + GROUP_INTS * (self.local + max_rows * self.top_k // self.group_rows(max_rows))


def most_gemv_rows(form: WeightForm, device: Device) -> int:
    """The most rows for which a product uses the GEMV kernel, without sorting the rows."""
    return _MOST_DEQUANTIZED_ROWS if form.is_dequantized_in_blocks and device.arch == TILED_ARCH else MOST_LISTED_ROWS


def gated_gemv_config(shape: tuple[int, ...], form: WeightForm, tokens: int, device: Device) -> GemvConfig | None:
    """How GroupedGatedLinear streams its weight while x stays in shared memory; None if x does not fit.

    4-bit weights that one team multiplies come in stages of two tiles: for 8 rows of gpt-oss-20b, an H200 takes 57 us
    with such a team, and 78 us with stages of one tile (53 us with three teams).
    """
    config, in_features = gemv_config(shape[-1], form, tokens, device), shape[-1]
    if config is None or config.stream_x or tokens > most_gemv_rows(form, device):
        return None
    stage_k = _equal_stage(in_features, form, ceil(in_features / config.stage_k))
    config = replace(config, stage_k=stage_k).in_teams(in_features, tokens, device)
    if config.teams > 1 or not form.takes_long or shape[-2] // _FEATURES_PER_TILE % 2:
        return config  # tiles of a stage are of one expert
    pairs = replace(config, stage_rows=2 * ROWS_PER_TILE, in_flight_bytes=_IN_FLIGHT_BYTES_OF_PAIRS)
    room = pairs.ring_bytes(in_features, tokens, device.shared_bytes)
    return pairs if room >= 3 * pairs.stage_bytes(tokens) else config


def _equal_stage(in_features: int, form: WeightForm, count: int) -> int:
    """The depth of a stage if a row is divided into ``count`` about equal stages of whole blocks."""
    depth = form.depth if form.blocks is None else max(form.depth, form.blocks.size)
    return depth * ceil(in_features / (count * depth))


def summed_gemv_config(shape: tuple[int, ...], form: WeightForm, tokens: int, device: Device) -> GemvConfig | None:
    """How GroupedLinear streams its weight and rows of x: in stages of equal depth, if three of them fit.

    Blocks share out the weight's rows. With 4-bit weights, up to two tiles share rows of x.
    """
    *_, out_features, in_features = shape
    if form.x_bytes == 1 or in_features % form.depth or out_features % EIGHT:
        return None
    if tokens > most_gemv_rows(form, device):
        return None
    for most in (_MOST_STAGE_BYTES, _MOST_STAGE_BYTES // 2):
        chunks = ceil(form.weight_bytes(in_features) / most)
        stage_k = _equal_stage(in_features, form, chunks)
        reason = f"{chunks} stages of an expert's rows"
        config = GemvConfig(stage_k, ROWS_PER_TILE, True, _IN_FLIGHT_BYTES, reason, form)
        tiles, in_flight = (2, _IN_FLIGHT_BYTES_OF_PAIRS) if form.takes_long else (1, _IN_FLIGHT_BYTES)
        rows = _stage_rows(out_features, tiles, feature_grain(out_features, form))
        config = replace(config, stage_rows=rows, in_flight_bytes=in_flight)
        room = config.ring_bytes(in_features, tokens, device.shared_bytes)
        if room >= max(3 * config.stage_bytes(tokens), RING_SHARE * device.shared_bytes):
            return config
    return None


def _stage_rows(features: int, tiles: int, grain: int) -> int:
    """Rows of a stage of up to ``tiles`` tiles, if blocks share out ``features`` rows and have equal stages."""
    blocks = min(features // EIGHT, RESIDENT[1])
    ends = [block * (features // grain) // blocks * grain for block in range(blocks + 1)]
    eights = max(ceil(end / EIGHT) - first // EIGHT for first, end in pairwise(ends))
    return EIGHT * ceil(eights / ceil(eights / (2 * tiles)))


def feature_grain(features: int, form: WeightForm) -> int:
    """How many neighbouring ``features`` blocks do not part when they share out features (TL_GRAIN).

    The fewer they are, the less the busiest block has to read, but the more of its tiles lack rows. This is the largest
    number with which that block has at most 5 % more than the average; if multiplying takes long, tiles are whole.
    """
    blocks = RESIDENT[1]
    if features // EIGHT <= blocks or form.takes_long:
        return EIGHT
    most = _MOST_IMBALANCE * features / blocks
    return next((grain for grain in (8, 4, 2) if grain * ceil(features / (grain * blocks)) <= most), 1)


def in_runs(how: FewRows, grain: int) -> FewRows:
    """``how`` for blocks that share out features by ``grain``: more bytes in flight if some stages are not full."""
    if grain == EIGHT:
        return how
    return replace(how, config=replace(how.config, in_flight_bytes=_IN_FLIGHT_BYTES_OF_PAIRS))


def in_list_room(how: FewRows, choice: ExpertChoice) -> FewRows:
    """``how`` in a kernel whose blocks have a ChosenList in shared memory."""
    room = how.device.shared_bytes - _ALIGNED * ceil(choice.list_bytes(how.tokens) / _ALIGNED)
    return replace(how, device=replace(how.device, shared_bytes=room))


def stream_grid(tiles: int) -> tuple[Extent]:
    """One block for each of at most ``tiles`` tiles, but no more than run at a time."""
    resident = resident_grid(1)
    return (Extent(tiles),) if tiles < 128 else (resident,)


def row_grid(rows: Extent, features: int) -> tuple[Extent, int]:
    """Several blocks of ROW_THREADS threads for each row, so that many SMs move a few rows."""
    return rows, ceil(features / (8 * ROW_THREADS))


def even_groups(groups: Buffer, rows: Extent, choice: ExpertChoice, group_rows: int) -> Launch:
    """A list of ExpertRows as if ``rows`` had chosen experts evenly, for timing products."""
    defines = {"TL_GROUP_ROWS": group_rows, "TL_LOCAL_EXPERTS": choice.local, "TL_SHARED": choice.shared}
    defines["TL_THREADS"] = ROW_THREADS
    specialised = kernel("grouped_linear/even_groups.cuh", "even_groups", ROW_THREADS, 0, defines | choice.defines)
    return launch(specialised, (1,), groups, rows)


def group_configs(weight: WeightBuffers, group_rows: int) -> tuple[TileConfig, ...]:
    """Tiles that may multiply ``weight`` [experts, ..., out, in] with groups of up to this many rows.

    The heuristic's choice comes first: the widest tile or, for swap-AB, the one with the least work for an SM. All
    give a row equal bits.
    """
    form = form_of(weight)
    swap_ab = form.is_dequantized_in_blocks and group_rows <= MOST_SWAP_AB_ROWS
    if swap_ab:
        widths = [columns for columns in _COLUMNS if columns in SWAP_AB_COLUMNS]
        widths.sort(key=lambda columns: _swap_ab_work(weight, group_rows, columns))
    else:
        widths = [columns for columns in _COLUMNS if columns <= max_columns(form, group_rows)][:_NUM_WIDTHS]
    reason = f"groups of {group_rows} rows of an expert"
    return tuple(TileConfig(max(64, group_rows), columns, 1, 1, 1, reason, swap_ab=swap_ab) for columns in widths)


def _swap_ab_work(weight: WeightBuffers, group_rows: int, columns: int) -> float:
    """The amount that an SM copies if all experts are chosen, in arbitrary units."""
    experts, *parts, out_features, _ = (extent for extent in weight.values.shape if isinstance(extent, int))
    tiles = experts * ceil(prod(parts) * out_features / columns)
    x_bytes = _X_WEIGHT * group_rows * 16 / form_of(weight).weight_bits
    return ceil(tiles / RESIDENT[1]) * (columns + x_bytes)


@dataclass(frozen=True)
class GroupTiling:
    """A tiled product of ``max_rows`` rows that are sorted by expert, in groups of ``group_rows``.

    ``config`` is one of :func:`group_configs`.
    """

    dtype: str
    device: Device
    choice: ExpertChoice
    max_rows: int
    group_rows: int
    config: TileConfig

    def __post_init__(self) -> None:
        assert self.group_rows <= self.config.rows, f"groups of {self.group_rows} rows in {self.config}"

    @property
    def tiling(self) -> Tiling:
        """The tiling of the rows of a group."""
        return Tiling(self.dtype, self.device, self.config, self.group_rows)

    def kernel(self, op: str, weight: WeightBuffers, more: dict[str, int]) -> Kernel:
        """The kernel of ``op`` for ``weight`` [experts, ..., out, in]; ``more`` are macros besides the common ones."""
        way = "swap_ab" if self.config.swap_ab else "tiled"
        return self.tiling.kernel(f"{op}/{way}.cuh", f"{op}_{way}", weight, more | self.choice.defines)

    def maps(self, x: Buffer, weight: WeightBuffers) -> tuple[TensorMap, TensorMap]:
        """The tensor maps of x and the weight, by which the kernel copies boxes."""
        *parts, in_features = (extent for extent in weight.values.shape if isinstance(extent, int))
        form, stored = form_of(weight), DTYPES[weight.values.dtype].stored
        item = STORED_BYTES[stored]
        box = self.config.columns // (2 if len(parts) == 3 else 1)
        return (
            TensorMap(x, self.max_rows, in_features, self.tiling.x_copy, _STEP_BYTES // form.x_bytes),
            TensorMap(weight.values, prod(parts), form.weight_bytes(in_features) // item, box, _STEP_BYTES // item),
        )

    def grid(self) -> tuple[Extent]:
        """The number of blocks that run at a time, because only the GPU knows the number of tiles."""
        return (resident_grid(1),)


def choice_of(op: Lowering) -> ExpertChoice:
    """The experts of an operator, from its attributes and the shape of its ``ids``."""
    top_k = op.extents("ids")[-1]
    assert isinstance(top_k, int)
    others = (op.attribute(name) for name in ("local_experts", "moe_tp_size", "num_shared"))
    return ExpertChoice(op.attribute("experts"), top_k, *others)


def check_vectors(op: Lowering) -> None:
    """Raise BuildError unless the extents of an operator's weight are multiples of 8, the elements of a vector."""
    *_, out_features, in_features = op.extents("weight")
    if any(isinstance(extent, int) and extent % 8 for extent in (out_features, in_features)):
        op.refuse(
            f"its experts have {in_features} features in and {out_features} out, and the GPU kernels move 8 at a time: "
            "expected multiples of 8; build for --target cpu"
        )


def check_sorted(op: Lowering) -> None:
    """Raise BuildError where the device has no kernels that multiply rows which are sorted by expert."""
    if op.device.arch != TILED_ARCH:
        op.refuse(
            f"products of more than {MOST_LISTED_ROWS} rows with experts need {TILED_ARCH}, not {op.device.arch}: "
            "build for sm_90 or for cpu"
        )
