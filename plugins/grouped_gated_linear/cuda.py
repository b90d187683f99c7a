"""GroupedGatedLinear on a GPU: GEMV for a few rows; for many, tiled after sorting by expert."""

from __future__ import annotations

from ..cuda.activation import ACTIVATION_FLAGS
from ..cuda.few_rows import FewRows
from ..cuda.grouped import (
    EIGHT,
    ROW_THREADS,
    ExpertChoice,
    GroupTiling,
    check_sorted,
    check_vectors,
    choice_of,
    feature_grain,
    in_list_room,
    in_runs,
    row_grid,
    stream_grid,
)
from ..cuda.lowering import Lowering
from ..launch import DTYPE_FLAGS, Buffer, Command, Extent, Launch, WeightBuffers, features, kernel, launch
from ..router.scores import Scores, scores_of


def _self_gated(y: Buffer, weight: WeightBuffers) -> int:
    """Whether y has features of both matrices of ``weight``, which then are the halves of one without a gate."""
    return int(y.shape[-1] != weight.values.shape[-2])


def stream(
    y: Buffer,
    x: Buffer,
    weight: WeightBuffers,
    scores: Scores,
    tally: Buffer,
    how: FewRows,
    *,
    activation: str,
    scales_inputs: bool = False,
    norm: tuple[Buffer, float] | None = None,
    bias: Buffer | None = None,
) -> Launch:
    """y [rows, top_k, out] = share * activation(g) * u of each row's experts, chosen by ``scores``.

    The choices are counted in ``tally``. If shares scale inputs (``scales_inputs``), the products g and u are
    multiplied by them instead. If y has twice as many features, they are activation(g) * g and activation(u) * u.
    """
    out_features, choice = weight.values.shape[-2], scores.choice
    assert isinstance(out_features, int)
    flags = {"TL_NORM": int(norm is not None), "TL_BIAS": int(bias is not None), **scores.list_defines}
    flags |= {"TL_ACTIVATION": ACTIVATION_FLAGS[activation], "TL_SCALES_INPUTS": int(scales_inputs)}
    gated = min(choice.experts, how.tokens * choice.top_k) * out_features
    grain = feature_grain(gated, how.config.form)
    flags |= {"TL_SELF_GATED": _self_gated(y, weight), "TL_GRAIN": grain}
    specialised = in_list_room(in_runs(how, grain), choice).kernel(
        "grouped_gated_linear/cuda.cuh", "grouped_gated_linear", weight, flags
    )
    norm_weight, epsilon = norm or (None, 0.0)
    operands = (weight.values, *weight.numbers, bias, norm_weight, epsilon, how.x_scale, *scores.arguments)
    return launch(specialised, stream_grid(gated // EIGHT), y, tally, x, *operands)


def sort_rows(
    to: Buffer, x: Buffer, places: Buffer, rows: Extent, choice: ExpertChoice, shares: Buffer | None = None
) -> Launch:
    """Copy rows of x [times shares] once for each of a row's experts, in the order of experts."""
    defines = {"TL_IN": features(x), "TL_THREADS": ROW_THREADS, **choice.defines}
    defines |= {"TL_SHARES": int(shares is not None), "TL_FP16": DTYPE_FLAGS[x.dtype]}
    specialised = kernel("grouped_gated_linear/sort_rows.cuh", "sort_rows", ROW_THREADS, 0, defines)
    return launch(specialised, row_grid(rows, features(x)), to, x, places, shares)


def tiled(
    y: Buffer,
    x: Buffer,
    weight: WeightBuffers,
    groups: Buffer,
    how: GroupTiling,
    *,
    activation: str,
    bias: Buffer | None = None,
) -> Launch:
    """y = activation(g) * u, or activation(g) * g and activation(u) * u, for rows that are sorted by expert."""
    flags = {"TL_ACTIVATION": ACTIVATION_FLAGS[activation], "TL_BIAS": int(bias is not None)}
    flags["TL_SELF_GATED"] = _self_gated(y, weight)
    specialised = how.kernel("grouped_gated_linear", weight, flags)
    return launch(specialised, how.grid(), *how.maps(x, weight), y, *weight.numbers, bias, groups)


def lower(op: Lowering) -> list[Command]:
    """Launch the GEMV kernel, or the sort of rows and the tiled kernel."""
    check_vectors(op)
    choice, x, y = choice_of(op), op.rows("x"), op.new("y")
    activation = op.attribute("activation")
    if op.has("scores"):
        how = op.few_rows()
        assert how is not None
        more = {"activation": activation, "norm": op.norm(), "bias": op.optional_vector("bias")}
        more["scales_inputs"] = op.has("input_shares")
        scores = scores_of(op, op.rows("scores"))
        return [stream(y, x, op.weight(), scores, op.state("tally"), how, **more)]
    check_sorted(op)
    input_shares = op.optional_rows("input_shares")
    rows = Buffer(f"{op.name}.sorted", op.dtype, (op.extents("y")[0], choice.top_k, features(x)))
    return [
        sort_rows(rows, x, op.rows("places"), op.num_rows("y"), choice, input_shares),
        *op.grouped_product(y, rows, choice, activation),
    ]
