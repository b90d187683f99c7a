"""Router on a GPU: scores by a product of 16-bit rows, then the choice, and lists of what was chosen.

The weight is float32, and multiplied as the sum of two matrices of 16 bits, of which the second is what the first
lacks: exact where the weight was of that type, else to 2^-17 of each element (2^-22 for float16). Sums are float32.
"""

from __future__ import annotations

from ..cuda.grouped import MAX_EXPERTS, MAX_TOP_K, ExpertChoice, choice_of
from ..cuda.lowering import Lowering
from ..launch import Buffer, Command, Extent, Launch, kernel, launch
from ..linear.cuda import stream

_SCORINGS = {"softmax": 0, "normalized_softmax": 1, "softmax_of_chosen": 1}  # numbers of Scoring (router/chosen.cuh)
_SORT_THREADS = 256
_SORT_ROWS = _SORT_THREADS // 32  # of a block


def lower(op: Lowering) -> list[Command]:
    """The product, and one launch for a few rows or for any number."""
    choice = choice_of(op)
    if choice.experts > MAX_EXPERTS or choice.top_k > MAX_TOP_K:
        op.refuse(
            f"it chooses {choice.top_k} of {choice.experts} experts, and the GPU kernels at most {MAX_TOP_K} of "
            f"{MAX_EXPERTS}: build for --target cpu"
        )
    _check_scoring(op)
    ids = op.new("ids", "int32")
    scores = Buffer(f"{op.name}.scores", "float32", (ids.shape[0], choice.scores))
    bias = op.optional_vector("score_bias")
    ranks = op.state("ranks") if op.has("ranks") else None
    last = (scores, bias, ranks, op.num_rows("ids"), op.max_tokens, choice, op.attribute("scoring"))
    if op.has("chosen"):
        listed = choose(ids, op.new("shares", "float32"), op.new("chosen", "int32"), *last)
    else:
        within, first, groups = (op.new(name, "int32") for name in ("within", "first", "groups"))
        listed = sort(ids, within, first, op.new("shares", "float32"), groups, op.state("counts"), *last)
    return [*_product(op, scores), listed]


def _check_scoring(op: Lowering) -> None:
    """Raise BuildError for ways to choose that the kernels do not know."""
    scoring, num_groups, scale = (op.attribute(name) for name in ("scoring", "num_groups", "scale"))
    if scoring not in _SCORINGS or num_groups > 1 or scale != 1 or op.has("correction"):
        op.refuse(
            f"its scoring is {scoring} in {num_groups} groups, with shares times {scale}, and the GPU kernels know "
            "softmax without groups, factors or corrections: build for --target cpu"
        )


def _product(op: Lowering, scores: Buffer) -> list[Command]:
    how = op.streaming()
    if how is None:
        return op.product(scores)
    return [stream(scores, op.rows("x"), op.weight(), op.num_rows("ids"), how, norm=op.norm())]


def choose(
    ids: Buffer,
    shares: Buffer,
    chosen: Buffer,
    scores: Buffer,
    bias: Buffer | None,
    ranks: Buffer | None,
    rows: Extent,
    max_rows: int,
    choice: ExpertChoice,
    scoring: str,
) -> Launch:
    """The experts of each of a few rows, by their numbers on this rank, and the list of those that are ``chosen``."""
    defines = {"TL_ROWS": max_rows, **_defines(choice, scoring, bias)}
    specialised = kernel("router/choose.cuh", "choose_experts", 32 * max_rows, 0, defines)
    return launch(specialised, (1,), ids, shares, chosen, scores, bias, ranks, rows)


def sort(
    ids: Buffer,
    within: Buffer,
    first: Buffer,
    shares: Buffer,
    groups: Buffer,
    counts: Buffer,
    scores: Buffer,
    bias: Buffer | None,
    ranks: Buffer | None,
    rows: Extent,
    max_rows: int,
    choice: ExpertChoice,
    scoring: str,
) -> Launch:
    """The experts of each of at most ``max_rows`` rows, and the order of rows by expert."""
    defines = {"TL_THREADS": _SORT_THREADS, "TL_GROUP_ROWS": choice.group_rows(max_rows)}
    defines |= _defines(choice, scoring, bias)
    specialised = kernel("router/sort.cuh", "sort_by_expert", _SORT_THREADS, 0, defines)
    blocks = Extent(0, tuple((name, multiplier, divisor * _SORT_ROWS) for name, multiplier, divisor in rows.terms))
    return launch(specialised, (blocks,), ids, within, first, shares, groups, counts, scores, bias, ranks, rows)


def _defines(choice: ExpertChoice, scoring: str, bias: Buffer | None) -> dict[str, int]:
    flags = {"TL_SCORING": _SCORINGS[scoring], "TL_BIAS": int(bias is not None)}
    of_rank = {"TL_LOCAL_EXPERTS": choice.local, "TL_MOE_TP": choice.moe_tp_size}
    return {**flags, **of_rank, "TL_SCORES": choice.scores, **choice.defines}
