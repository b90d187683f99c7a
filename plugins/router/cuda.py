"""Router on a GPU: scores by a product of 16-bit rows, then the choice, and lists of what was chosen.

The weight is float32, and multiplied as the sum of two matrices of 16 bits, of which the second is what the first
lacks: exact where the weight was of that type, else to 2^-17 of each element (2^-22 for float16). Sums are float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..cuda.grouped import MAX_EXPERTS, MAX_TOP_K, ExpertChoice, choice_of
from ..cuda.lowering import Lowering
from ..launch import Argument, Buffer, Command, Extent, Launch, kernel, launch, symbol
from ..linear.cuda import stream

# Value of TL_SCORING; router/scoring.cuh reads it.
_SCORINGS = {
    **{"softmax": 0, "normalized_softmax": 1, "softmax_of_chosen": 2},
    **{"sigmoid": 3, "normalized_sigmoid": 4, "sigmoid_of_chosen": 5},
}
_MAX_GROUPS = 32
_SORT_THREADS = 256
_SORT_ROWS = _SORT_THREADS // 32  # of a block


@dataclass(frozen=True)
class Scoring:
    """How experts are chosen by their scores, and what shares they get, as ``schema.toml`` says."""

    name: str
    num_groups: int = 1
    top_groups: int = 1
    num_best: int = 1
    scale: float = 1.0

    @property
    def defines(self) -> dict[str, int]:
        """The macros of kernels that choose."""
        groups = {"TL_GROUPS": self.num_groups, "TL_TOP_GROUPS": self.top_groups, "TL_NUM_BEST": self.num_best}
        return {"TL_SCORING": _SCORINGS[self.name], **groups}


@dataclass(frozen=True)
class Scores:
    """The scores of at most ``max_rows`` rows, of which ``rows`` are there, and the choice that is made by them.

    ``values`` are two terms of each expert's score. ``bias`` is added to scores, ``correction`` to what experts are
    chosen by. ``ranks`` is what a rank that has some of the experts knows of all. ``tally`` is where choices are
    counted. ``padding``, of decode steps: where keys and values of rows go, and from where on a row is padding, which
    chooses nothing.
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
        return {**added, **of_rank, "TL_SCORES": self.choice.scores, **self.choice.defines, **self.scoring.defines}

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The last arguments of these kernels."""
        chosen_by = (self.values, self.bias, self.correction, self.scoring.scale, self.ranks)
        return self.tally, *chosen_by, *(self.padding or (None, 0)), self.rows


def lower(op: Lowering) -> list[Command]:
    """The product, and one launch for a few rows or for any number."""
    choice, scoring = choice_of(op), _scoring(op)
    if choice.experts > MAX_EXPERTS or choice.top_k > MAX_TOP_K or scoring.num_groups > _MAX_GROUPS:
        op.refuse(
            f"it chooses {choice.top_k} of {choice.experts} experts in {scoring.num_groups} groups, and the GPU "
            f"kernels at most {MAX_TOP_K} of {MAX_EXPERTS} in {_MAX_GROUPS}: build for --target cpu"
        )
    ids = op.new("ids", "int32")
    values = Buffer(f"{op.name}.scores", "float32", (ids.shape[0], choice.scores))
    added = (op.optional_vector("score_bias"), op.optional_vector("correction"))
    ranks = op.state("ranks") if op.has("ranks") else None
    of_choice = (op.num_rows("ids"), op.max_tokens, choice, scoring, op.state("tally"))
    padding = (op.rows("slots"), symbol("num_blocks", op.tokens_per_block)) if op.has("slots") else None
    scores = Scores(values, *of_choice, *added, ranks, padding)
    if op.has("chosen"):
        listed = choose(ids, op.new("shares", "float32"), op.new("chosen", "int32"), scores)
    else:
        within, first, groups = (op.new(name, "int32") for name in ("within", "first", "groups"))
        listed = sort(ids, within, first, op.new("shares", "float32"), groups, op.state("counts"), scores)
    return [*_product(op, values), listed]


def _scoring(op: Lowering) -> Scoring:
    names = ("scoring", "num_groups", "top_groups", "num_best", "scale")
    return Scoring(*(op.attribute(name) for name in names))


def _product(op: Lowering, scores: Buffer) -> list[Command]:
    how = op.streaming()
    if how is None:
        return op.product(scores)
    return [stream(scores, op.rows("x"), op.weight(), op.num_rows("ids"), how, norm=op.norm())]


def choose(ids: Buffer, shares: Buffer, chosen: Buffer, scores: Scores) -> Launch:
    """The experts of each of a few rows, by their numbers on this rank, and the list of those that are ``chosen``."""
    defines = {"TL_ROWS": scores.max_rows, **scores.defines}
    specialised = kernel("router/choose.cuh", "choose_experts", 32 * scores.max_rows, 0, defines)
    return launch(specialised, (1,), ids, shares, chosen, *scores.arguments)


def sort(
    ids: Buffer, within: Buffer, first: Buffer, shares: Buffer, groups: Buffer, counts: Buffer, scores: Scores
) -> Launch:
    """The experts of each row, and the order of rows by expert."""
    defines = {"TL_THREADS": _SORT_THREADS, "TL_GROUP_ROWS": scores.choice.group_rows(scores.max_rows)}
    specialised = kernel("router/sort.cuh", "sort_by_expert", _SORT_THREADS, 0, defines | scores.defines)
    terms = ((name, multiplier, divisor * _SORT_ROWS) for name, multiplier, divisor in scores.rows.terms)
    blocks = Extent(0, tuple(terms))
    return launch(specialised, (blocks,), ids, within, first, shares, groups, counts, *scores.arguments)
