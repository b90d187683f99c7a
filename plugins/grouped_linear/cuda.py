"""GroupedLinear on a GPU: GEMV for a few rows; for many, a tiled product of sorted rows, whose results are added."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..cuda.few_rows import FewRows
from ..cuda.grouped import (
    EIGHT,
    ROW_THREADS,
    ExpertChoice,
    GroupTiling,
    choice_of,
    feature_grain,
    in_list_room,
    row_grid,
    stream_grid,
)
from ..cuda.lowering import Lowering
from ..cuda.row_scales import RowScales, row_type
from ..launch import DTYPE_FLAGS, Buffer, Command, Extent, Launch, WeightBuffers, features, kernel, launch
from ..router.scores import Scores, scores_of

_MOST_NORM_THREADS = 512


def stream(
    y: Buffer,
    x: Buffer,
    weight: WeightBuffers,
    scores: Scores,
    how: FewRows,
    residual: Buffer | None = None,
    bias: Buffer | None = None,
) -> Launch:
    """y [rows, out] = the sum over each row's experts, chosen by ``scores`` [+ share * bias] [+ residual].

    x includes the shares. A kernel earlier than the previous one must have written the scores.
    """
    flags = {"TL_RESIDUAL": int(residual is not None), "TL_BIAS": int(bias is not None), **scores.list_defines}
    flags["TL_GRAIN"] = feature_grain(features(y), how.config.form)
    specialised = in_list_room(how, scores.choice).kernel("grouped_linear/cuda.cuh", "grouped_linear", weight, flags)
    operands = (weight.values, *weight.numbers, bias, residual, *scores.arguments)
    return launch(specialised, stream_grid(features(y) // EIGHT), y, x, *operands)


def tiled(
    y: Buffer, x: Buffer, weight: WeightBuffers, groups: Buffer, how: GroupTiling, bias: Buffer | None = None
) -> Launch:
    """y = x @ w.T [+ bias] for rows that are sorted by expert."""
    specialised = how.kernel("grouped_linear", weight, {"TL_BIAS": int(bias is not None)})
    return launch(specialised, how.grid(), *how.maps(x, weight), y, *weight.numbers, bias, groups)


@dataclass(frozen=True)
class Results:
    """Results of experts: ``rows`` sorted by expert; ``places`` has their places for each slot of a row.

    Results are multiplied by ``shares`` if given, and a ``residual`` is added to a row's sum.
    """

    rows: Buffer
    places: Buffer
    shares: Buffer | None
    residual: Buffer | None = None

    @property
    def operands(self) -> tuple[Buffer | None, ...]:
        """Arguments of the kernels that add up the results."""
        return self.rows, self.places, self.shares, self.residual

    def defines(self, choice: ExpertChoice) -> dict[str, int]:
        """The macros of the kernels that add up the results."""
        flags = {"TL_RESIDUAL": int(self.residual is not None), "TL_SHARES": int(self.shares is not None)}
        return {**flags, "TL_FP16": DTYPE_FLAGS[self.rows.dtype], **choice.defines}


@dataclass(frozen=True)
class SumNorm:
    """An RMS norm of a sum. Its result ``y`` is bytes if there are ``scales``."""

    y: Buffer
    scales: RowScales | None
    weight: Buffer
    epsilon: float


def combine(y: Buffer, results: Results, num_rows: Extent, choice: ExpertChoice) -> Launch:
    """y = the sum over slots of [share *] row [+ residual]."""
    defines = {"TL_OUT": features(y), "TL_THREADS": ROW_THREADS, **results.defines(choice)}
    specialised = kernel("grouped_linear/combine.cuh", "combine", ROW_THREADS, 0, defines)
    return launch(specialised, row_grid(num_rows, features(y)), y, *results.operands)


def combine_norm(total: Buffer, results: Results, num_rows: Extent, choice: ExpertChoice, norm: SumNorm) -> Launch:
    """Compute ``total`` like :func:`combine`, and its ``norm``."""
    threads = min(_MOST_NORM_THREADS, 32 * ceil(features(total) / (8 * 32)))
    scale, buffer = (0.0, None) if norm.scales is None else (norm.scales.value, norm.scales.buffer)
    defines = {"TL_HIDDEN": features(total), "TL_THREADS": threads, **results.defines(choice)}
    defines |= {"TL_Y_TYPE": row_type(norm.scales), "TL_ROW_SCALES": int(buffer is not None)}
    specialised = kernel("grouped_linear/combine_norm.cuh", "combine_norm", threads, 0, defines)
    of_norm = (norm.weight, norm.epsilon, scale)
    return launch(specialised, (num_rows,), norm.y, buffer, total, *results.operands, *of_norm)


def lower(op: Lowering) -> list[Command]:
    """Launch the GEMV kernel, or the tiled kernel and the sum of its results."""
    choice, x, y, residual = choice_of(op), op.rows("x"), op.new("y"), op.optional_rows("residual")
    if op.has("scores"):
        how, bias = op.few_rows(), op.optional_vector("bias")
        assert how is not None
        assert bias is None or op.has("shares"), "biases are multiplied by shares"
        return [stream(y, x, op.weight(), scores_of(op, op.rows("scores")), how, residual, bias)]
    rows = Buffer(f"{op.name}.sorted", op.dtype, (op.extents("y")[0], choice.top_k, features(y)))
    results = Results(rows, op.rows("places"), op.optional_rows("shares"), residual)
    product = op.grouped_product(rows, x, choice, "none")
    if not op.has("norm_weight"):
        return [*product, combine(y, results, op.num_rows("y"), choice)]
    total = op.new("sum") if op.has("sum") else Buffer(f"{op.name}.sum", op.dtype, op.extents("y"))
    norm = SumNorm(y, op.scales("y"), op.vector("norm_weight"), op.attribute("epsilon"))
    return [*product, combine_norm(total, results, op.num_rows("y"), choice, norm)]
