"""Routers and products with experts against float64, on a GPU or emulated."""

from dataclasses import dataclass, replace

import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import Machine
from tests.gpu.launches import H200
from tests.gpu.memory import NAMES, Memory
from trtllm_lite.plugins.cuda.grouped import (
    MOST_LISTED_ROWS,
    ExpertChoice,
    GroupTiling,
    gated_stream_config,
    summed_stream_config,
)
from trtllm_lite.plugins.cuda.stream import Streaming
from trtllm_lite.plugins.cuda.weight_form import weight_form
from trtllm_lite.plugins.grouped_gated_linear import cuda as gated
from trtllm_lite.plugins.grouped_linear import cuda as summed
from trtllm_lite.plugins.launch import Buffer, Device, WeightBuffers, symbol
from trtllm_lite.plugins.router import cuda as router

EPSILON = 1e-5
_ACTIVATIONS = {False: "silu", True: "swiglu_oai"}


@dataclass(frozen=True)
class Mixture:
    """The extents of a mixture of experts, and how many rows a program's steps have at most."""

    experts: int
    top_k: int
    hidden: int
    inner: int
    max_rows: int
    scoring: str = "normalized_softmax"

    @property
    def choice(self) -> ExpertChoice:
        return ExpertChoice(self.experts, self.top_k)


class Lists:
    """What Router leaves in memory for products, poisoned at first."""

    def __init__(self, mixture: Mixture, memory: Memory, device: str) -> None:
        rows, top_k, experts = mixture.max_rows, mixture.top_k, mixture.experts

        def new(name: str, *shape: int, fill: int = -7) -> Buffer:
            return memory(name, torch.full(shape, fill, device=device, dtype=torch.int32))

        self.ids, self.within = new("ids", rows, top_k), new("within", rows, top_k)
        self.shares = memory("shares", torch.full((rows, top_k), POISON, device=device))
        self.chosen = new("chosen", mixture.choice.chosen_ints(min(rows, MOST_LISTED_ROWS)))
        self.groups, self.first = new("groups", mixture.choice.groups_ints(rows)), new("first", experts)
        self.counts = new("counts", experts + 1, fill=0)

    @property
    def places(self) -> tuple[Buffer, Buffer, Buffer]:
        return self.ids, self.within, self.first


def random_scores(mixture: Mixture, rows: int, device: str) -> torch.Tensor:
    """Two terms of each score, of a few values only, so that many are equal, and experts that nobody picks."""
    scores = torch.randint(-4, 5, (rows, mixture.choice.scores), device=device) / 2
    scores[:, 1 : mixture.experts : mixture.experts // 2] -= 100
    return scores


def expected_choice(
    mixture: Mixture, scores: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and shares of the best experts, of equal ones those of the lowest numbers."""
    terms = scores[:, : 2 * mixture.experts].double()
    both = terms.reshape(len(scores), 2, mixture.experts).sum(1) + (0 if bias is None else bias.double())
    ids = torch.argsort(both, dim=-1, descending=True, stable=True)[:, : mixture.top_k]
    if mixture.scoring == "softmax":
        return ids, both.softmax(-1).gather(1, ids)
    return ids, both.gather(1, ids).softmax(-1)


def check_router(mixture: Mixture, rows: int, *, streamed: bool, machine: Machine, biased: bool = False) -> None:
    """Two steps, so that what the first leaves behind would show."""
    bias = torch.randint(-4, 5, (mixture.experts,), device=machine.device) / 2 if biased else None
    memory = Memory()
    lists = Lists(mixture, memory, machine.device)
    for _ in range(2):
        scores = random_scores(mixture, rows, machine.device)
        choose(mixture, memory, lists, scores, streamed, machine, bias)
        ids, shares = expected_choice(mixture, scores, bias)
        assert torch.equal(memory.tensors[lists.ids][:rows].long(), ids)
        torch.testing.assert_close(memory.tensors[lists.shares][:rows].double(), shares, rtol=1e-5, atol=1e-7)
        check = _check_chosen if streamed else _check_sorted
        check(mixture, memory, lists, ids.cpu())


def choose(
    mixture: Mixture,
    memory: Memory,
    lists: Lists,
    scores: torch.Tensor,
    streamed: bool,
    machine: Machine,
    bias: torch.Tensor | None = None,
) -> None:
    """Launch the kernel that chooses."""
    of_rows = (memory("scores", scores), memory.optional("bias", bias), symbol("rows"), mixture.max_rows)
    if streamed:
        launch = router.choose(lists.ids, lists.shares, lists.chosen, *of_rows, mixture.choice, mixture.scoring)
    else:
        outputs = (*lists.places, lists.shares, lists.groups, lists.counts)
        launch = router.sort(*outputs, *of_rows, mixture.choice, mixture.scoring)
    memory.run(launch, len(scores), machine)


def _check_chosen(mixture: Mixture, memory: Memory, lists: Lists, ids: torch.Tensor) -> None:
    found = memory.tensors[lists.chosen].cpu()
    expected = sorted(set(ids.flatten().tolist()))
    assert found[0] == len(expected)
    records = found[4 : 4 + 8 * len(expected)].reshape(-1, 8)
    assert records[:, 0].tolist() == expected
    for record in records:
        rows, slots = (ids == record[0]).nonzero(as_tuple=True)
        assert record[1] == sum(1 << int(row) for row in rows)
        assert record[4:].view(torch.uint8)[rows].tolist() == slots.tolist()
    del mixture


def _check_sorted(mixture: Mixture, memory: Memory, lists: Lists, ids: torch.Tensor) -> None:
    _, within, first = (memory.tensors[buffer].cpu().long() for buffer in lists.places)
    places = first[ids] + within[: len(ids)]
    assert sorted(places.flatten().tolist()) == list(range(ids.numel()))
    expert_of_place = torch.empty(ids.numel(), dtype=torch.long)
    expert_of_place[places.flatten()] = ids.flatten()
    assert bool((expert_of_place.diff() >= 0).all())
    found = memory.tensors[lists.groups].cpu()
    groups = found[4 : 4 + 4 * int(found[0])].reshape(-1, 4)[:, :3].tolist()
    most, covered = mixture.choice.group_rows(mixture.max_rows), 0
    for expert, begin, end in groups:
        assert begin == covered
        assert begin < end <= begin + most
        assert bool((expert_of_place[begin:end] == expert).all())
        covered = end
    assert covered == ids.numel()
    assert not memory.tensors[lists.counts].any()


def check_experts(
    mixture: Mixture,
    rows: int,
    dtype: torch.dtype,
    *,
    streamed: bool,
    norm: bool = False,
    residual: bool = False,
    biased: bool = False,
    device: Device = H200,
    machine: Machine,
) -> None:
    """y = the weighted sum of a row's experts, from random scores to the end; the last of the rows is not a number.

    With ``biased`` experts have biases, by which sums reach beyond the bounds of swiglu_oai, and else SwiGLU.
    """
    at, choice = machine.device, mixture.choice
    memory = Memory()
    lists = Lists(mixture, memory, at)
    scores = random_scores(mixture, rows, at)
    choose(mixture, memory, lists, scores, streamed, machine)
    x = torch.randn(mixture.max_rows, mixture.hidden, device=at).to(dtype)
    x[rows - 1] = POISON
    shape = (mixture.experts, 2, mixture.inner, mixture.hidden)
    gate_up = (torch.randn(shape, device=at) / mixture.hidden**0.5).to(dtype)
    down = (torch.randn(mixture.experts, mixture.hidden, mixture.inner, device=at) / mixture.inner**0.5).to(dtype)
    norm_weight = 1 + torch.rand(mixture.hidden, device=at) if norm else None
    stream = torch.randn(mixture.max_rows, mixture.hidden, device=at).to(dtype) if residual else None
    biases = [4 * torch.randn(shape[:3], device=at), torch.randn(down.shape[:2], device=at)] if biased else [None] * 2
    added, of_bias = memory.optional("residual", stream), [memory.optional(f"bias{i}", b) for i, b in enumerate(biases)]
    first, second = WeightBuffers(memory("gate_up", gate_up)), WeightBuffers(memory("down", down))
    features = (mixture.max_rows, mixture.top_k, mixture.inner)
    hidden = memory("hidden", torch.full(features, POISON, device=at, dtype=dtype))
    y = memory("y", torch.full((mixture.max_rows, mixture.hidden), POISON, device=at, dtype=dtype))
    of_x, num_rows = memory("x", x), symbol("rows")
    if streamed:
        normed = (memory("norm", norm_weight), EPSILON) if norm_weight is not None else None
        how = streaming(mixture, dtype, device)
        lists_of_gated = (lists.chosen, lists.shares, num_rows, how[0], choice)
        gating = {"activation": _ACTIVATIONS[biased], "bias": of_bias[0], "norm": normed}
        memory.run(gated.stream(hidden, of_x, first, *lists_of_gated, **gating), rows, machine)
        bias = None if of_bias[1] is None else summed.Bias(of_bias[1], lists.ids, lists.shares)
        memory.run(summed.stream(y, hidden, second, lists.chosen, num_rows, how[1], choice, added, bias), rows, machine)
    else:
        _run_sorted(mixture, memory, lists, (of_x, first, hidden, second, y, added), of_bias, rows, machine)
    seen = x[: rows - 1].double()
    if norm_weight is not None:
        seen = seen * torch.rsqrt(seen.square().mean(-1, keepdim=True) + EPSILON) * norm_weight.double()
        seen = seen.to(dtype).double()
    expected = _expected(mixture, seen, gate_up, down, biases, scores[: rows - 1])
    expected = expected if stream is None else expected + stream[: rows - 1].double()
    result = memory.tensors[y]
    assert torch.isnan(result[rows - 1 :]).all(), "a row of NaN is lost, or a row past the last is written"
    rounded = torch.uint8 if dtype == torch.bfloat16 else dtype  # features are rounded, and so are their shares
    assert_close(result[: rows - 1], expected, rounded)


def streaming(mixture: Mixture, dtype: torch.dtype, device: Device) -> tuple[Streaming, Streaming]:
    form, tokens = weight_form(NAMES[dtype]), mixture.max_rows
    configs = (
        gated_stream_config((mixture.experts, 2, mixture.inner, mixture.hidden), form, tokens, device),
        summed_stream_config((mixture.experts, mixture.hidden, mixture.inner), form, tokens, device),
    )
    first, second = configs
    assert first is not None
    assert second is not None
    return Streaming(tokens, NAMES[dtype], device, first), Streaming(tokens, NAMES[dtype], device, second)


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
    how = GroupTiling(NAMES[dtype], H200, choice, count, group_rows)

    def room(name: str, features: int) -> Buffer:
        return memory(name, torch.full((count, features), POISON, device=machine.device, dtype=dtype))

    rows_of_x, results = room("sorted x", mixture.hidden), room("sorted y", mixture.hidden)
    memory.run(gated.sort_rows(rows_of_x, x, *lists.places, num_rows, choice), rows, machine)
    gating = {"activation": _ACTIVATIONS[biases[0] is not None], "bias": biases[0]}
    memory.run(gated.tiled(hidden, rows_of_x, first, lists.groups, how, **gating), rows, machine)
    flat = replace(hidden, shape=(count, mixture.inner))
    memory.tensors[flat] = memory.tensors[hidden].reshape(count, -1)
    memory.run(summed.tiled(results, flat, second, lists.groups, how, biases[1]), rows, machine)
    memory.run(summed.combine(y, results, *lists.places, lists.shares, num_rows, choice, added), rows, machine)


def _expected(
    mixture: Mixture,
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    biases: list[torch.Tensor | None],
    scores: torch.Tensor,
) -> torch.Tensor:
    ids, shares = expected_choice(mixture, scores)
    y = torch.zeros_like(x)
    for expert in range(mixture.experts):
        rows, slots = (ids == expert).nonzero(as_tuple=True)
        gate, up = (x[rows] @ part.double().T for part in gate_up[expert])
        if biases[0] is not None and biases[1] is not None:
            gate, up = (gate + biases[0][expert, 0]).clamp(max=7), (up + biases[0][expert, 1]).clamp(-7, 7)
            result = (gate * torch.sigmoid(1.702 * gate) * (up + 1)) @ down[expert].double().T + biases[1][expert]
        else:
            result = (torch.nn.functional.silu(gate) * up) @ down[expert].double().T
        y[rows] += shares[rows, slots, None] * result
    return y
