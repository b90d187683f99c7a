"""Router on a GPU: scores by a product of 16-bit rows; in steps of many rows also the choice, and lists of it.

In steps of a few rows, the kernels of the products with experts choose (router/chosen_list.cuh).

The weight is float32, and multiplied as the sum of two matrices of 16 bits, of which the second is what the first
lacks: exact where the weight was of that type, else to 2^-17 of each element (2^-22 for float16). Sums are float32.
"""

from __future__ import annotations

from ..cuda.grouped import MAX_EXPERTS, MAX_TOP_K, choice_of
from ..cuda.lowering import Lowering
from ..launch import Buffer, Command, Extent, Kernel, Launch, kernel, launch
from ..linear.cuda import stream
from .scores import Scores, scores_of, scoring_of

_MAX_GROUPS = 32
_CHOOSING_THREADS = 256
_CHOOSING_ROWS = _CHOOSING_THREADS // 32  # rows of a block
_SORT_BLOCKS = 8  # kSortBlocks of router/expert_sort.cuh
_LEAST_SORT_WARPS, _MOST_SORT_WARPS = 4, 16  # warps per block where these also choose
_SORT_CHOSEN_WARPS, _MOST_COUNT_BYTES = 32, 80 * 1024  # if their counts take no more than that
_MOST_SORTED_ROWS = 512  # the most rows of a step for which one cluster both chooses and sorts


def lower(op: Lowering) -> list[Command]:
    """Launch the product and, unless the products with experts choose for themselves, the choice."""
    choice, scoring = choice_of(op), scoring_of(op)
    if choice.experts > MAX_EXPERTS or choice.top_k > MAX_TOP_K or scoring.num_groups > _MAX_GROUPS:
        op.refuse(
            f"it chooses {choice.top_k} of {choice.experts} experts in {scoring.num_groups} groups, and the GPU "
            f"kernels choose at most {MAX_TOP_K} of {MAX_EXPERTS} in {_MAX_GROUPS}: build for --target cpu"
        )
    if op.has("scores"):
        return _product(op, op.new("scores", "float32"))
    ids = op.new("ids", "int32")
    values = Buffer(f"{op.name}.scores", "float32", (ids.shape[0], scoring.columns(choice)))
    lists = op.new("places", "int32"), op.new("shares", "float32"), op.new("groups", "int32")
    return [*_product(op, values), *sort(ids, *lists, op.state("tally"), scores_of(op, values))]


def _product(op: Lowering, scores: Buffer) -> list[Command]:
    how = op.few_rows()
    if how is None:
        return op.product(scores)
    return [stream(scores, op.rows("x"), op.weight(), op.num_rows("ids"), how, norm=op.norm())]


def sort(ids: Buffer, places: Buffer, shares: Buffer, groups: Buffer, tally: Buffer, scores: Scores) -> list[Launch]:
    """Choose the experts of each row, let one cluster sort the rows by expert, and count choices in ``tally``.

    In a large step, a kernel on the whole GPU chooses first, because a choice takes some hundred instructions per row.
    """
    if scores.max_rows > _MOST_SORTED_ROWS:
        return [_choose_rows(ids, places, shares, scores), _sort_chosen(places, groups, tally, scores)]
    rows = -(-scores.max_rows // _SORT_BLOCKS)
    of_experts = -(-scores.choice.experts // 32)  # a thread then adds up the counts of one expert
    warps = min(max(rows, of_experts, _LEAST_SORT_WARPS), _MOST_SORT_WARPS)
    how = _sorting("router/sort.cuh", "sort_by_expert", warps, rows * scores.choice.top_k, scores)
    return [launch(how, (_SORT_BLOCKS,), ids, places, shares, groups, tally, *scores.arguments)]


def _choose_rows(ids: Buffer, choices: Buffer, shares: Buffer, scores: Scores) -> Launch:
    defines = {"TL_THREADS": _CHOOSING_THREADS, **scores.defines}
    how = kernel("router/choose_rows.cuh", "choose_rows", _CHOOSING_THREADS, 0, defines)
    terms = ((name, multiplier, divisor * _CHOOSING_ROWS) for name, multiplier, divisor in scores.rows.terms)
    return launch(how, (Extent(0, tuple(terms)),), ids, choices, shares, *scores.arguments)


def _sort_chosen(places: Buffer, groups: Buffer, tally: Buffer, scores: Scores) -> Launch:
    warps = min(_SORT_CHOSEN_WARPS, _MOST_COUNT_BYTES // (4 * scores.choice.experts) - 2)
    how = _sorting("router/sort_chosen.cuh", "sort_chosen", warps, 0, scores)
    return launch(how, (_SORT_BLOCKS,), places, groups, tally, scores.ranks, scores.rows)


def _sorting(source: str, name: str, warps: int, choices: int, scores: Scores) -> Kernel:
    """A kernel whose blocks have this many warps, with shared memory for counts (ExpertSort::kInts) and choices."""
    defines = {"TL_THREADS": 32 * warps, "TL_GROUP_ROWS": scores.choice.group_rows(scores.max_rows)}
    shared_bytes = 4 * ((warps + 2) * scores.choice.experts + choices)
    return kernel(source, name, 32 * warps, shared_bytes, defines | scores.defines)
