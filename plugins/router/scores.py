"""The scores by which rows choose experts, as operands and macros of the kernels that choose."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..cuda.grouped import ExpertChoice, choice_of
from ..cuda.lowering import Lowering
from ..launch import Argument, Buffer, Extent, symbol

# Value of TL_SCORING; router/scoring.cuh reads it.
_SCORINGS = {
    **{"softmax": 0, "normalized_softmax": 1, "softmax_of_chosen": 2},
    **{"sigmoid": 3, "normalized_sigmoid": 4, "sigmoid_of_chosen": 5, "sparse_mixer": 6},
}


@dataclass(frozen=True)
class Scoring:
    """How experts are chosen by their scores, and what shares they get, as ``schema.toml`` says."""

    name: str
    num_groups: int = 1
    top_groups: int = 1
    num_best: int = 1
    scale: float = 1.0
    threshold: float = 0.0
    shared_gate: int = 0

    @property
    def defines(self) -> dict[str, int]:
        """The macros of kernels that choose."""
        groups = {"TL_GROUPS": self.num_groups, "TL_TOP_GROUPS": self.top_groups, "TL_NUM_BEST": self.num_best}
        return {"TL_SCORING": _SCORINGS[self.name], "TL_SHARED_GATE": self.shared_gate, **groups}

    def columns(self, choice: ExpertChoice) -> int:
        """Columns of a row's scores for this ``choice``."""
        return num_score_columns(choice.experts - choice.shared + self.shared_gate)


@dataclass(frozen=True)
class Scores:
    """The scores of ``rows`` rows, at most ``max_rows``, and the choice of experts by them.

    ``values`` are two terms of each score. ``bias`` is added to scores, ``correction`` to what experts are
    chosen by; ``factors`` are of the shares of experts. ``ranks`` is the table of all ranks, if this one has only some
    of the experts. ``padding``, of decode steps: the cache slots of rows, and the first slot of padding rows, which
    choose no experts. The kernels that choose have these :attr:`arguments` last.
    """

    values: Buffer
    rows: Extent
    max_rows: int
    choice: ExpertChoice
    scoring: Scoring
    bias: Buffer | None = None
    correction: Buffer | None = None
    factors: Buffer | None = None
    ranks: Buffer | None = None
    padding: tuple[Buffer, Extent] | None = None

    @property
    def defines(self) -> dict[str, int]:
        """The macros of kernels that choose."""
        added = {"TL_SCORE_BIAS": int(self.bias is not None), "TL_CORRECTION": int(self.correction is not None)}
        added["TL_FACTORS"] = int(self.factors is not None)
        of_rank = {"TL_LOCAL_EXPERTS": self.choice.local, "TL_MOE_TP": self.choice.moe_tp_size}
        columns = {"TL_SCORES": self.scoring.columns(self.choice), "TL_SHARED": self.choice.shared}
        return {**added, **of_rank, **columns, **self.choice.defines, **self.scoring.defines}

    @property
    def list_defines(self) -> dict[str, int]:
        """The macros of kernels whose blocks choose for themselves (router/chosen_list.cuh)."""
        return {**self.defines, "TL_LIST_BYTES": self.choice.list_bytes(self.max_rows)}

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The last arguments of the kernels that choose."""
        added = (self.bias, self.correction, self.scoring.scale, self.scoring.threshold)
        return self.values, *added, self.ranks, *(self.padding or (None, 0)), self.rows, self.factors


def num_score_columns(columns: int) -> int:
    """Columns of a row's scores: two for each of the weight's ``columns``, padded to a multiple of 8."""
    return ceil(2 * columns / 8) * 8


def scoring_of(op: Lowering) -> Scoring:
    """How an operator with the attributes of Router chooses experts."""
    names = ("scoring", "num_groups", "top_groups", "num_best", "scale", "threshold", "shared_gate")
    return Scoring(*(op.attribute(name) for name in names))


def scores_of(op: Lowering, values: Buffer) -> Scores:
    """The scores ``values`` of an operator that chooses experts; it has the other operands of Router for that."""
    bias, correction, factors = map(op.optional_vector, ("score_bias", "correction", "share_factors"))
    ranks = op.state("ranks") if op.has("ranks") else None
    padding = (op.rows("slots"), symbol("num_blocks", op.tokens_per_block)) if op.has("slots") else None
    how = (choice_of(op), scoring_of(op))
    return Scores(values, op.num_rows("ids"), op.max_tokens, *how, bias, correction, factors, ranks, padding)
