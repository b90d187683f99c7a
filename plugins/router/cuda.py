"""Router on a GPU: scores by a product of 16-bit rows, then the choice, and lists of what was chosen.

The weight is float32, and multiplied as the sum of two matrices of 16 bits, of which the second is what the first
lacks: exact where the weight was of that type, else to 2^-17 of each element (2^-22 for float16). Sums are float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..cuda.grouped import MAX_EXPERTS, MAX_TOP_K, ExpertChoice, choice_of
from ..cuda.lowering import Lowering
from ..launch import Argument, Buffer, Command, Extent, Kernel, Launch, kernel, launch, symbol
from ..linear.cuda import stream

# Value of TL_SCORING; router/scoring.cuh reads it.
_SCORINGS = {
    **{"softmax": 0, "normalized_softmax": 1, "softmax_of_chosen": 2},
    **{"sigmoid": 3, "normalized_sigmoid": 4, "sigmoid_of_chosen": 5},
}
_MAX_GROUPS = 32
_CHOOSING_THREADS = 256
_CHOOSING_ROWS = _CHOOSING_THREADS // 32  # rows of a block
_SORT_BLOCKS = 8  # kSortBlocks of router/expert_sort.cuh
_LEAST_SORT_WARPS, _MOST_SORT_WARPS = 4, 16  # warps per block where these also choose
_SORT_CHOSEN_WARPS, _MOST_COUNT_BYTES = 32, 80 * 1024  # if their counts take no more than that
_MOST_SORTED_ROWS = 512  # the most rows of a step for which one cluster both chooses and sorts


@dataclass(frozen=True)
class Scoring:
    """How experts are chosen by their scores, and what shares they get, as ``schema.toml`` says."""

    name: str
    num_groups: int = 1
    top_groups: int = 1
    num_best: int = 1
    scale: float = 1.0
    shared_gate: int = 0

    @property
    def defines(self) -> dict[str, int]:
        """The macros of kernels that choose."""
        groups = {"TL_GROUPS": self.num_groups, "TL_TOP_GROUPS": self.top_groups, "TL_NUM_BEST": self.num_best}
        return {"TL_SCORING": _SCORINGS[self.name], "TL_SHARED_GATE": self.shared_gate, **groups}

    def columns(self, choice: ExpertChoice) -> int:
        """Columns of a row's scores: two for each column of the weight, padded to a multiple of 8."""
        return -(-2 * (choice.experts - choice.shared + self.shared_gate) // 8) * 8


@dataclass(frozen=True)
class Scores:
    """The scores of ``rows`` rows, at most ``max_rows``, and the choice of experts by them.

    ``values`` are two terms of each score. ``bias`` is added to scores, ``correction`` to what experts are
    chosen by. ``ranks`` is the table of all ranks, if this one has only some of the experts. ``tally`` is where choices
    are counted. ``padding``, of decode steps: the cache slots of rows, and the first slot of padding rows, which choose
    no experts.
    """

    values: Buffer
    rows: Extent
    max_rows: int
    choice: ExpertChoice
    scoring: Scoring
    tally: Buffer
    bias: Buffer | None = None
    correction: Buffer | None = None
    ranks: Buffer | None = None
    padding: tuple[Buffer, Extent] | None = None

    @property
    def defines(self) -> dict[str, int]:
        """The macros of kernels that choose."""
        added = {"TL_BIAS": int(self.bias is not None), "TL_CORRECTION": int(self.correction is not None)}
        of_rank = {"TL_LOCAL_EXPERTS": self.choice.local, "TL_MOE_TP": self.choice.moe_tp_size}
        columns = {"TL_SCORES": self.scoring.columns(self.choice), "TL_SHARED": self.choice.shared}
        return {**added, **of_rank, **columns, **self.choice.defines, **self.scoring.defines}

    @property
    def chosen_by(self) -> tuple[Argument, ...]:
        """The last arguments of the kernels that choose."""
        added = (self.bias, self.correction, self.scoring.scale)
        return self.values, *added, self.ranks, *(self.padding or (None, 0)), self.rows

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The last arguments of the kernels that choose and count."""
        return self.tally, *self.chosen_by


def lower(op: Lowering) -> list[Command]:
    """Launch the product and the choice."""
    choice, scoring = choice_of(op), _scoring(op)
    if choice.experts > MAX_EXPERTS or choice.top_k > MAX_TOP_K or scoring.num_groups > _MAX_GROUPS:
        op.refuse(
            f"it chooses {choice.top_k} of {choice.experts} experts in {scoring.num_groups} groups, and the GPU "
            f"kernels choose at most {MAX_TOP_K} of {MAX_EXPERTS} in {_MAX_GROUPS}: build for --target cpu"
        )
    ids = op.new("ids", "int32")
    values = Buffer(f"{op.name}.scores", "float32", (ids.shape[0], scoring.columns(choice)))
    added = (op.optional_vector("score_bias"), op.optional_vector("correction"))
    ranks = op.state("ranks") if op.has("ranks") else None
    of_choice = (op.num_rows("ids"), op.max_tokens, choice, scoring, op.state("tally"))
    padding = (op.rows("slots"), symbol("num_blocks", op.tokens_per_block)) if op.has("slots") else None
    scores = Scores(values, *of_choice, *added, ranks, padding)
    if op.has("chosen"):
        listed = [choose(ids, op.new("shares", "float32"), op.new("chosen", "int32"), scores)]
    else:
        listed = sort(ids, op.new("places", "int32"), op.new("shares", "float32"), op.new("groups", "int32"), scores)
    return [*_product(op, values), *listed]


def _scoring(op: Lowering) -> Scoring:
    names = ("scoring", "num_groups", "top_groups", "num_best", "scale", "shared_gate")
    return Scoring(*(op.attribute(name) for name in names))


def _product(op: Lowering, scores: Buffer) -> list[Command]:
    how = op.few_rows()
    if how is None:
        return op.product(scores)
    return [stream(scores, op.rows("x"), op.weight(), op.num_rows("ids"), how, norm=op.norm())]


def choose(ids: Buffer, shares: Buffer, chosen: Buffer, scores: Scores) -> Launch:
    """Choose the experts of each of a few rows, as indices on this rank, and list those that are ``chosen``."""
    defines = {"TL_ROWS": scores.max_rows, **scores.defines}
    specialised = kernel("router/choose.cuh", "choose_experts", 32 * scores.max_rows, 0, defines)
    return launch(specialised, (1,), ids, shares, chosen, *scores.arguments)


def sort(ids: Buffer, places: Buffer, shares: Buffer, groups: Buffer, scores: Scores) -> list[Launch]:
    """Choose the experts of each row, and let one cluster sort the rows by expert.

    In a large step, a kernel on the whole GPU chooses first, because a choice takes some hundred instructions per row.
    """
    if scores.max_rows > _MOST_SORTED_ROWS:
        return [_choose_rows(ids, places, shares, scores), _sort_chosen(places, groups, scores)]
    rows = -(-scores.max_rows // _SORT_BLOCKS)
    of_experts = -(-scores.choice.experts // 32)  # a thread then adds up the counts of one expert
    warps = min(max(rows, of_experts, _LEAST_SORT_WARPS), _MOST_SORT_WARPS)
    how = _sorting("router/sort.cuh", "sort_by_expert", warps, rows * scores.choice.top_k, scores)
    return [launch(how, (_SORT_BLOCKS,), ids, places, shares, groups, *scores.arguments)]


def _choose_rows(ids: Buffer, choices: Buffer, shares: Buffer, scores: Scores) -> Launch:
    defines = {"TL_THREADS": _CHOOSING_THREADS, **scores.defines}
    how = kernel("router/choose_rows.cuh", "choose_rows", _CHOOSING_THREADS, 0, defines)
    terms = ((name, multiplier, divisor * _CHOOSING_ROWS) for name, multiplier, divisor in scores.rows.terms)
    return launch(how, (Extent(0, tuple(terms)),), ids, choices, shares, *scores.chosen_by)


def _sort_chosen(places: Buffer, groups: Buffer, scores: Scores) -> Launch:
    warps = min(_SORT_CHOSEN_WARPS, _MOST_COUNT_BYTES // (4 * scores.choice.experts) - 2)
    how = _sorting("router/sort_chosen.cuh", "sort_chosen", warps, 0, scores)
    return launch(how, (_SORT_BLOCKS,), places, groups, scores.tally, scores.ranks, scores.rows)


def _sorting(source: str, name: str, warps: int, choices: int, scores: Scores) -> Kernel:
    """A kernel whose blocks have this many warps, with shared memory for counts (ExpertSort::kInts) and choices."""
    defines = {"TL_THREADS": 32 * warps, "TL_GROUP_ROWS": scores.choice.group_rows(scores.max_rows)}
    shared_bytes = 4 * ((warps + 2) * scores.choice.experts + choices)
    return kernel(source, name, 32 * warps, shared_bytes, defines | scores.defines)
