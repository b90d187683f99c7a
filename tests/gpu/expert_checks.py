"""Compares routers and expert products with float64, on a GPU or emulated."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import Machine
from tests.gpu.launches import H200
from tests.gpu.memory import NAMES, Memory
from tests.gpu.ranks import rank_table
from tests.gpu.weights import Form, random_weight
from trtllm_lite.plugins.cuda.few_rows import FewRows
from trtllm_lite.plugins.cuda.grouped import (
    MOST_LISTED_ROWS,
    ExpertChoice,
    GroupTiling,
    even_groups,
    gated_gemv_config,
    group_configs,
    summed_gemv_config,
)
from trtllm_lite.plugins.cuda.weight_form import WeightForm, form_of
from trtllm_lite.plugins.grouped_gated_linear import cuda as gated
from trtllm_lite.plugins.grouped_linear import cuda as summed
from trtllm_lite.plugins.launch import Buffer, Device, Extent, Launch, WeightBuffers, kernel, launch, symbol
from trtllm_lite.plugins.router import cuda as router
from trtllm_lite.plugins.router.reference import reference
from trtllm_lite.plugins.router.scores import Scores, Scoring

EPSILON = 1e-5
TALLY_PLACES = 3  # kTallyPlaces of router/tally.cuh
SPARE = 48
_MOE_TP_SIZE = 2
_MOST_FIXED_ROWS = 4  # kMostFixedTokens of cuda/fixed_rows.cuh
_LIST_CHOSEN = Path(__file__).parent / "sources" / "list_chosen.cuh"
_ACTIVATIONS = {False: "silu", True: "swiglu_oai"}


@dataclass(frozen=True)
class Mixture:
    """The extents of a mixture of experts, and how many rows a program's steps have at most.

    The last ``shared`` of the ``experts`` are the last of every row's ``top_k``, with the sigmoid of a score as their
    share if there is a ``gate``.
    With ``of_rank`` the experts are divided among ranks: ``rank`` has ``of_rank``, and shares each with another rank.
    """

    experts: int
    top_k: int
    hidden: int
    inner: int
    max_rows: int
    scoring: str = "normalized_softmax"
    groups: tuple[int, int, int] = (1, 1, 1)  # their number, how many are kept, and by how many experts each is ranked
    scale: float = 1.0
    threshold: float = 0.0  # of SparseMixer
    scales_inputs: bool = False  # whether rows are multiplied by shares before experts read them
    of_rank: int | None = None
    rank: int = 0
    shared: int = 0
    gate: bool = False
    self_gated: bool = False

    @property
    def candidates(self) -> int:
        """The experts among which rows choose."""
        return self.experts - self.shared

    @property
    def num_scores(self) -> int:
        return self.candidates + self.gate

    @property
    def columns(self) -> int:
        """Numbers in a row of scores: two terms of each, and padding."""
        return self.routing.columns(self.choice)

    @property
    def local(self) -> int:
        return self.of_rank or self.experts

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of the weights of GroupedGatedLinear and of GroupedLinear."""
        return (self.local, 2, self.inner, self.hidden), (self.local, self.hidden, self.features)

    @property
    def features(self) -> int:
        """The features of an expert: those of both matrices, if each gates itself."""
        return self.inner * (1 + self.self_gated)

    @property
    def routing(self) -> Scoring:
        return Scoring(self.scoring, *self.groups, self.scale, self.threshold, int(self.gate))

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of Router."""
        groups = dict(zip(("num_groups", "top_groups", "num_best"), self.groups, strict=True))
        local = {"local_experts": self.experts, "moe_tp_size": 1}
        shared = {"num_shared": self.shared, "shared_gate": int(self.gate)}
        chosen = {"top_k": self.top_k - self.shared, "scoring": self.scoring}
        numbers = {"scale": self.scale, "threshold": self.threshold}
        return {**chosen, **numbers, **groups, **local, **shared}

    @property
    def choice(self) -> ExpertChoice:
        return ExpertChoice(self.experts, self.top_k, self.local, _MOE_TP_SIZE, self.shared)

    def here(self, ids: torch.Tensor) -> torch.Tensor:
        """Indices of the experts within the rank; -1 for experts of other ranks."""
        local = ids - self.rank // _MOE_TP_SIZE * self.local
        return torch.where((local >= 0) & (local < self.local), local, -1) if self.of_rank else ids

    def ranks(self, device: str) -> torch.Tensor | None:
        """The rank table that kernels read to find the rank's experts; None without ``of_rank``."""
        count = _MOE_TP_SIZE * self.experts // self.local
        table = rank_table(self.rank, 0, 0, [0] * count, [0] * count, 0, 1.0)
        return table.to(device) if self.of_rank else None


class Lists:
    """The memory that Router fills for products, poisoned at first; ``listed`` is what list_chosen.cuh fills."""

    def __init__(self, mixture: Mixture, memory: Memory, device: str) -> None:
        rows, top_k, experts = mixture.max_rows, mixture.top_k, mixture.local

        def new(name: str, *shape: int) -> Buffer:
            return memory(name, torch.full(shape, -7, device=device, dtype=torch.int32))

        self.ids, self.places = new("ids", rows, top_k), new("places", rows, top_k)
        self.shares = memory("shares", torch.full((rows, top_k), POISON, device=device))
        tokens = min(rows, MOST_LISTED_ROWS)
        self.listed = new("listed", 1 + (2 + tokens) * min(mixture.local, tokens * top_k))
        self.groups = new("groups", mixture.choice.groups_ints(rows))
        self.tally = memory("tally", torch.zeros(experts + TALLY_PLACES, device=device, dtype=torch.int64))


def random_scores(mixture: Mixture, rows: int, device: str) -> torch.Tensor:
    """The two terms of each score, with few distinct values so that many are equal; no row chooses some experts."""
    scores = torch.randint(-4, 5, (rows, mixture.columns), device=device) / 2
    scores[:, 1 : mixture.candidates : mixture.candidates // 2] -= 100
    return scores


def expected_choice(
    mixture: Mixture,
    scores: torch.Tensor,
    bias: torch.Tensor | None = None,
    correction: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and shares of the best experts; of equal scores, the lowest ids."""
    terms = scores[:, : 2 * mixture.num_scores].double()
    both = terms.reshape(len(scores), 2, mixture.num_scores).sum(1)
    identity = np.eye(mixture.num_scores)
    added = (None if values is None else values.double().cpu().numpy() for values in (correction, bias, factors))
    ids, shares, *_ = reference((both.cpu().numpy(), identity, *added), mixture.attributes)
    return torch.from_numpy(ids).long().to(scores.device), torch.from_numpy(shares).double().to(scores.device)


def check_router(
    mixture: Mixture,
    rows: int,
    *,
    gemv: bool,
    machine: Machine,
    biased: bool = False,
    corrected: bool = False,
    with_factors: bool = False,
) -> None:
    """Check two steps, so that what the first leaves behind would show; the last quarter of the rows is padding.

    Many scores are equal; with corrections (``corrected``), no two experts are chosen by equal values.
    """
    bias = torch.randint(-4, 5, (mixture.candidates,), device=machine.device) / 2 if biased else None
    correction = torch.randn(mixture.candidates, device=machine.device) / 8 if corrected else None
    factors = torch.rand(mixture.candidates, device=machine.device) + 0.5 if with_factors else None
    memory = Memory()
    lists, tally = Lists(mixture, memory, machine.device), 0
    slots = torch.full((rows,), SPARE - 1, device=machine.device, dtype=torch.int32)
    slots[rows - rows // 4 :] = SPARE
    for _ in range(2):
        scores = random_scores(mixture, rows, machine.device)
        choose(mixture, memory, lists, scores, gemv, machine, bias, correction, slots, factors)
        ids, shares = expected_choice(mixture, scores, bias, correction, factors)
        tally = tally + _expected_tally(mixture, ids[slots < SPARE].cpu())
        ids = torch.where(slots[:, None] < SPARE, mixture.here(ids), -1)
        assert torch.equal(memory.tensors[lists.tally].cpu(), tally)
        assert torch.equal(memory.tensors[lists.ids][:rows].long(), ids)
        found = memory.tensors[lists.shares][:rows].double()
        torch.testing.assert_close(found[slots < SPARE], shares[slots < SPARE], rtol=1e-5, atol=1e-7)
        check = _check_chosen if gemv else _check_sorted
        check(mixture, memory, lists, ids.cpu())


def _expected_tally(mixture: Mixture, ids: torch.Tensor) -> torch.Tensor:
    """The counts that a step that chooses ``ids`` adds to the rank's tally."""
    of_all = torch.bincount(ids.flatten(), minlength=mixture.experts)
    runs = of_all.reshape(-1, mixture.local)
    own = runs[mixture.rank // _MOE_TP_SIZE if mixture.of_rank else 0]
    return torch.cat([own, torch.tensor([int((own > 0).sum()), 1, int(runs.sum(1).max())])])


def choose(
    mixture: Mixture,
    memory: Memory,
    lists: Lists,
    scores: torch.Tensor,
    gemv: bool,
    machine: Machine,
    bias: torch.Tensor | None = None,
    correction: torch.Tensor | None = None,
    padding: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
) -> Scores:
    """Launch the kernels that choose, or (``gemv``) one that shows how products choose; returns what they are given.

    Rows whose ``padding`` is SPARE or more are padding.
    """
    given = {"bias": bias, "correction": correction, "factors": factors}
    added = [memory.optional(name, values) for name, values in given.items()]
    ranks, rows = memory.optional("ranks", mixture.ranks(machine.device)), symbol("rows")
    of_rows = (memory("scores", scores), rows, mixture.max_rows, mixture.choice, mixture.routing)
    left_out = None if padding is None else (memory("cache slots", padding), Extent(SPARE))
    how = Scores(*of_rows, *added, ranks, left_out)
    if gemv:
        launches = [_list_chosen(lists, how)]
    else:
        launches = router.sort(lists.ids, lists.places, lists.shares, lists.groups, lists.tally, how)
    for each in launches:
        memory.run(each, len(scores), machine)
    return how


def _list_chosen(lists: Lists, scores: Scores) -> Launch:
    defines = {"TL_CONSUMER_WARPS": 8, "TL_WEIGHT_FORM": 0, "TL_ROW_SCALES": 0, "TL_TOKENS": scores.max_rows}
    specialised = kernel(str(_LIST_CHOSEN), "list_chosen", 32 * 8, 0, defines | scores.list_defines)
    return launch(specialised, (1,), lists.ids, lists.shares, lists.listed, lists.tally, *scores.arguments)


def _check_chosen(mixture: Mixture, memory: Memory, lists: Lists, ids: torch.Tensor) -> None:
    found, ints = memory.tensors[lists.listed].cpu(), 2 + mixture.max_rows
    expected = sorted(set(ids.flatten().tolist()) - {-1})
    assert found[0] == len(expected)
    records = found[1 : 1 + ints * len(expected)].reshape(-1, ints)
    assert records[:, 0].tolist() == expected
    for record in records:
        rows, slots = (ids == record[0]).nonzero(as_tuple=True)
        assert record[1] == sum(1 << int(row) for row in rows)
        assert record[2:][rows].tolist() == slots.tolist()


def _check_sorted(mixture: Mixture, memory: Memory, lists: Lists, ids: torch.Tensor) -> None:
    found = memory.tensors[lists.places][: len(ids)].cpu().long()
    here = ids >= 0
    assert bool((found[~here] == -1).all())
    places, num_places = found[here], int(here.sum())
    assert sorted(places.tolist()) == list(range(num_places))
    expert_of_place, row_of_place = torch.empty(2, num_places, dtype=torch.long)
    expert_of_place[places] = ids[here]
    row_of_place[places] = here.nonzero()[:, 0]
    assert bool((expert_of_place.diff() >= 0).all())
    assert bool((row_of_place.diff() > 0)[expert_of_place.diff() == 0].all()), "an expert's rows change their order"
    found = memory.tensors[lists.groups].cpu()
    groups = found[4 : 4 + 4 * int(found[0])].reshape(-1, 4)[:, :3].tolist()
    most, covered = mixture.choice.group_rows(mixture.max_rows), 0
    for expert, begin, end in groups:
        assert begin == covered
        assert begin < end <= begin + most
        assert bool((expert_of_place[begin:end] == expert).all())
        covered = end
    assert covered == num_places


def check_experts(
    mixture: Mixture,
    rows: int,
    dtype: torch.dtype,
    *,
    gemv: bool,
    norm: bool = False,
    residual: bool = False,
    biased: bool = False,
    form: Form | None = None,
    device: Device = H200,
    machine: Machine,
) -> None:
    """Check the weighted sum of a row's experts, from random scores to the end; the last of several rows is NaN.

    With ``biased``, experts have swiglu_oai and biases so large that sums are clamped; otherwise SwiGLU. Weights have
    ``form``, or the type of activations if it is None.
    """
    at, memory = machine.device, Memory()
    lists = Lists(mixture, memory, at)
    scores = random_scores(mixture, rows, at)
    choice = choose(mixture, memory, lists, scores, gemv, machine)
    memory.tensors[lists.tally].zero_()
    x = torch.randn(mixture.max_rows, mixture.hidden, device=at).to(dtype)
    good = max(1, rows - 1)
    x[good:rows] = POISON
    shape, of_down = mixture.shapes
    gate_up, down = (random_weight(form or Form(NAMES[dtype]), *of, device=at) for of in mixture.shapes)
    norm_weight = 1 + torch.rand(mixture.hidden, device=at) if norm else None
    stream = torch.randn(mixture.max_rows, mixture.hidden, device=at).to(dtype) if residual else None
    biases = [4 * torch.randn(shape[:3], device=at), torch.randn(of_down[:2], device=at)] if biased else [None] * 2
    added, of_bias = memory.optional("residual", stream), [memory.optional(f"bias{i}", b) for i, b in enumerate(biases)]
    memory.tensors |= gate_up.tensors | down.tensors
    first, second = gate_up.buffers, down.buffers
    features = (mixture.max_rows, mixture.top_k, mixture.features)
    hidden = memory("hidden", torch.full(features, POISON, device=at, dtype=dtype))
    y = memory("y", torch.full((mixture.max_rows, mixture.hidden), POISON, device=at, dtype=dtype))
    of_x = memory("x", x)
    if gemv:
        normed = (memory("norm", norm_weight), EPSILON) if norm_weight is not None else None
        how = few_rows(mixture, dtype, device, form_of(first))
        gating = {"activation": _ACTIVATIONS[biased], "bias": of_bias[0], "norm": normed}
        gating["scales_inputs"] = mixture.scales_inputs
        memory.run(gated.stream(hidden, of_x, first, choice, lists.tally, how[0], **gating), rows, machine)
        memory.run(summed.stream(y, hidden, second, choice, how[1], added, of_bias[1]), rows, machine)
        expected_tally = _expected_tally(mixture, expected_choice(mixture, scores)[0].cpu())
        assert torch.equal(memory.tensors[lists.tally].cpu(), expected_tally)
    else:
        _run_sorted(mixture, memory, lists, (of_x, first, hidden, second, y, added), of_bias, rows, machine)
    seen = x[:good].double()
    if norm_weight is not None:
        seen = seen * torch.rsqrt(seen.square().mean(-1, keepdim=True) + EPSILON) * norm_weight.double()
        seen = seen.to(dtype).double()
    expected = _expected(mixture, seen, gate_up.meant, down.meant, biases, scores[:good])
    expected = expected if stream is None else expected + stream[:good].double()
    result = memory.tensors[y]
    assert torch.isnan(result[rows:]).all(), "a row past the last is written"
    # Steps of few rows multiply 4-bit weights without offsets as integers, which have no NaN.
    is_integer = form is not None and form.dtype in ("int4", "uint4")
    has_nan = not is_integer or form.offsets or mixture.max_rows > _MOST_FIXED_ROWS
    if has_nan and good < rows and bool((mixture.here(expected_choice(mixture, scores)[0])[-1] >= 0).any()):
        assert torch.isnan(result[rows - 1]).all(), "a row of NaN is lost"
    rounded = torch.uint8 if dtype == torch.bfloat16 else dtype  # features are rounded, and so are their shares
    assert_close(result[:good], expected, rounded)


def few_rows(mixture: Mixture, dtype: torch.dtype, device: Device, form: WeightForm) -> tuple[FewRows, FewRows]:
    """The GEMV configurations of both products of a mixture."""
    of_gated, of_summed = mixture.shapes
    first = gated_gemv_config(of_gated, form, mixture.max_rows, device)
    second = summed_gemv_config(of_summed, form, mixture.max_rows, device)
    assert first is not None
    assert second is not None
    tokens, name = mixture.max_rows, NAMES[dtype]
    return FewRows(tokens, name, device, first), FewRows(tokens, name, device, second)


def _run_sorted(
    mixture: Mixture,
    memory: Memory,
    lists: Lists,
    operands: tuple[Buffer, WeightBuffers, Buffer, WeightBuffers, Buffer, Buffer | None],
    biases: list[Buffer | None],
    rows: int,
    machine: Machine,
) -> None:
    x, first, hidden, second, y, added = operands
    choice, num_rows = mixture.choice, symbol("rows")
    dtype, count = memory.tensors[x].dtype, mixture.max_rows * mixture.top_k
    group_rows = choice.group_rows(mixture.max_rows)
    of_gated, of_summed = (
        GroupTiling(NAMES[dtype], H200, choice, count, group_rows, group_configs(weight, group_rows)[0])
        for weight in (first, second)
    )

    def room(name: str, features: int) -> Buffer:
        return memory(name, torch.full((count, features), POISON, device=machine.device, dtype=dtype))

    rows_of_x, results = room("sorted x", mixture.hidden), room("sorted y", mixture.hidden)
    before, behind = (lists.shares, None) if mixture.scales_inputs else (None, lists.shares)
    memory.run(gated.sort_rows(rows_of_x, x, lists.places, num_rows, choice, before), rows, machine)
    gating = {"activation": _ACTIVATIONS[biases[0] is not None], "bias": biases[0]}
    memory.run(gated.tiled(hidden, rows_of_x, first, lists.groups, of_gated, **gating), rows, machine)
    flat = replace(hidden, shape=(count, mixture.features))
    memory.tensors[flat] = memory.tensors[hidden].reshape(count, -1)
    memory.run(summed.tiled(results, flat, second, lists.groups, of_summed, biases[1]), rows, machine)
    memory.run(summed.combine(y, summed.Results(results, lists.places, behind, added), num_rows, choice), rows, machine)


def check_summed_norm(
    mixture: Mixture, rows: int, dtype: torch.dtype, *, residual: bool, shares: bool, machine: Machine
) -> None:
    """Check the sum over slots, some of other ranks, and its norm; rows without slots are NaN."""
    at, memory, slots = machine.device, Memory(), mixture.max_rows * mixture.top_k
    shape = mixture.max_rows, mixture.hidden
    places = torch.randperm(slots, device=at).reshape(mixture.max_rows, -1).int()
    places[torch.rand(places.shape, device=at) < 0.25] = -1
    results = torch.full((slots, mixture.hidden), POISON, device=at, dtype=dtype)
    used = places[places >= 0].long()
    results[used] = torch.randn(len(used), mixture.hidden, device=at).to(dtype)
    factors = torch.rand(places.shape, device=at) if shares else None
    added = torch.randn(*shape, device=at).to(dtype) if residual else None
    weight = 1 + torch.rand(mixture.hidden, device=at)
    total, y = (memory(name, torch.full(shape, POISON, device=at, dtype=dtype)) for name in ("total", "y"))
    optional = (memory.optional("shares", factors), memory.optional("residual", added))
    of_experts = summed.Results(memory("results", results), memory("places", places), *optional)
    norm = summed.SumNorm(y, None, memory("weight", weight), EPSILON)
    memory.run(summed.combine_norm(total, of_experts, symbol("rows"), mixture.choice, norm), rows, machine)
    picked = torch.where(places[..., None] >= 0, results[places.clamp(min=0).long()].double(), 0)
    expected = (picked * (1 if factors is None else factors[..., None].double())).sum(1)
    expected = expected if added is None else expected + added.double()
    sums, normed = memory.tensors[total], memory.tensors[y]
    assert_close(sums[:rows], expected[:rows])
    seen = sums[:rows].double()
    assert_close(normed[:rows], seen * torch.rsqrt(seen.square().mean(-1, keepdim=True) + EPSILON) * weight.double())
    assert torch.isnan(sums[rows:]).all()
    assert torch.isnan(normed[rows:]).all()


def _expected(
    mixture: Mixture,
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    biases: list[torch.Tensor | None],
    scores: torch.Tensor,
) -> torch.Tensor:
    ids, shares = expected_choice(mixture, scores)
    ids, y = mixture.here(ids), torch.zeros_like(x)
    for expert in range(mixture.local):
        rows, slots = (ids == expert).nonzero(as_tuple=True)
        factors = shares[rows, slots, None]
        before, behind = (factors, 1) if mixture.scales_inputs else (1, factors)
        gate, up = (before * x[rows] @ part.double().T for part in gate_up[expert])
        if biases[0] is not None and biases[1] is not None:
            gate, up = (gate + biases[0][expert, 0]).clamp(max=7), (up + biases[0][expert, 1]).clamp(-7, 7)
            result = (gate * torch.sigmoid(1.702 * gate) * (up + 1)) @ down[expert].double().T + biases[1][expert]
        elif mixture.self_gated:
            result = torch.cat([torch.nn.functional.silu(part) * part for part in (gate, up)], -1)
            result = result @ down[expert].double().T
        else:
            result = (torch.nn.functional.silu(gate) * up) @ down[expert].double().T
        y[rows] += behind * result
    return y


def check_groups_alike(hidden: int, inner: int, form: Form, width: int, machine: Machine) -> None:
    """A row gets the same bits in groups and tiles of any size, with and without swap-AB.

    Groups of three sizes have tiles of three widths; groups of 16 rows have width number ``width``.
    """
    at, dtype, rows, expert = machine.device, torch.bfloat16, 100, 1
    mixture, memory = Mixture(2, 1, hidden, inner, rows), Memory()
    x = memory("x", torch.randn(rows, hidden, device=at).to(dtype))
    gate_up, down = (random_weight(form, *of, device=at) for of in mixture.shapes)
    memory.tensors |= gate_up.tensors | down.tensors
    found = []
    for number, most in enumerate((16, 64, 128)):
        groups = [[expert, first, min(first + most, rows), 0] for first in range(0, rows, most)]
        listed = memory(f"groups{most}", torch.tensor([[len(groups), 0, 0, 0], *groups], device=at, dtype=torch.int32))
        of_gated, of_summed = (
            GroupTiling(NAMES[dtype], H200, mixture.choice, rows, most, configs[(number + width) % len(configs)])
            for configs in (group_configs(weight.buffers, most) for weight in (gate_up, down))
        )
        gated_rows, y = (
            memory(f"{name}{most}", torch.full((rows, of), POISON, device=at, dtype=dtype))
            for name, of in (("gated", inner), ("y", hidden))
        )
        memory.run(gated.tiled(gated_rows, x, gate_up.buffers, listed, of_gated, activation="none"), rows, machine)
        memory.run(summed.tiled(y, gated_rows, down.buffers, listed, of_summed), rows, machine)
        found.append((memory.tensors[gated_rows], memory.tensors[y]))
    for sums in found[1:]:
        for one, other in zip(found[0], sums, strict=True):
            assert torch.isfinite(one).all()
            assert torch.equal(one, other)


def check_even_groups(choice: ExpertChoice, max_rows: int, rows: int, machine: Machine) -> None:
    """Check that each expert of a rank has its share of the rows, or one row more, in consecutive groups.

    Shared experts have all rows.
    """
    memory, most = Memory(), choice.group_rows(max_rows)
    room = torch.full((choice.groups_ints(max_rows),), -7, device=machine.device, dtype=torch.int32)
    memory.run(even_groups(memory("groups", room), symbol("rows"), choice, most), rows, machine)
    found = room.cpu()
    groups = found[4 : 4 + 4 * int(found[0])].reshape(-1, 4).tolist()
    assert bool((found[4 + 4 * len(groups) :] == -7).all())
    counts, covered = [0] * choice.local, 0
    for expert, begin, end, _ in groups:
        assert begin == covered
        assert begin < end <= begin + most
        assert counts[expert] % most == 0, "all groups of an expert but the last are full"
        assert not any(counts[expert + 1 :]), "experts come by rising numbers"
        counts[expert] += end - begin
        covered = end
    chosen = choice.local - choice.shared
    assert counts[chosen:] == [rows] * choice.shared
    of_chosen = rows * (choice.top_k - choice.shared) * chosen // (choice.experts - choice.shared)
    assert covered == of_chosen + choice.shared * rows
    assert max(counts[:chosen]) - min(counts[:chosen]) <= 1
