"""Checks of the LoRA kernels, on a GPU or emulated, launched as plugins/low_rank/cuda.py says."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import Machine
from trtllm_lite.plugins.launch import Argument, Buffer, Extent, Launch, symbol
from trtllm_lite.plugins.low_rank.cuda import AdapterMatrices, AdapterRows, expand, num_splits, shrink
from trtllm_lite.plugins.low_rank.reference import Pair, low_rank

_FIRST_PART = 3
_DTYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(frozen=True)
class Problem:
    """A product whose parts have ``widths`` outputs; ``ranks`` has the rank of each slot's parts, 0 if there is none.

    ``adapters`` is the slot of each row, -1 for none.
    """

    in_features: int
    widths: tuple[int, ...]
    max_rank: int
    ranks: Sequence[Sequence[int]]
    adapters: Sequence[int]

    @property
    def parts(self) -> int:
        return len(self.widths)


def check_low_rank(problem: Problem, dtype: torch.dtype, machine: Machine, *, residual: bool) -> None:
    """Check random adapters; elements beyond a rank, in unused slots and in unused parts are NaN."""
    device, rows = machine.device, len(problem.adapters)
    pairs = [_pairs(problem, ranks, dtype, device) for ranks in problem.ranks]
    memory = _memory(problem, pairs, dtype, device)
    x, other = (torch.randn(rows, size, device=device).to(dtype) for size in (problem.in_features, sum(problem.widths)))
    y = torch.full_like(other, POISON)
    _launch(problem, machine, {"x": x, "y": y, "residual": other if residual else None, **memory})
    adapters = [pairs[slot] if slot >= 0 else None for slot in problem.adapters]
    expected = torch.from_numpy(low_rank(x.float().cpu().numpy(), adapters, _FIRST_PART, problem.widths)).double()
    if residual:
        expected += other.cpu().double()
    assert_close(y.cpu(), expected)
    alone = torch.tensor(problem.adapters) < 0
    assert torch.equal(y.cpu()[alone], (other if residual else torch.zeros_like(other)).cpu()[alone])


def _pairs(problem: Problem, ranks: Sequence[int], dtype: torch.dtype, device: str) -> dict[int, Pair]:
    """The matrices of one adapter, a [rank, in] and b [rank, out], by number of projection."""
    found = {}
    for part, (rank, width) in enumerate(zip(ranks, problem.widths, strict=True)):
        if rank:
            a = (torch.randn(rank, problem.in_features, device=device) / problem.in_features**0.5).to(dtype)
            b = torch.randn(rank, width, device=device).to(dtype)
            found[_FIRST_PART + part] = (a.float().cpu().numpy(), b.float().cpu().numpy())
    return found


def _memory(problem: Problem, pairs: list[dict[int, Pair]], dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    """The slots, filled as the executor fills them, and the rows in the order of their slots."""
    slots, rank = len(pairs), problem.max_rank
    a, b, ranks = _slots(problem, slots, dtype, device)
    for slot, adapter in enumerate(pairs):
        begin = 0
        for part, width in enumerate(problem.widths):
            if (pair := adapter.get(_FIRST_PART + part)) is not None:
                own, padded = len(pair[0]), -(-len(pair[0]) // 8) * 8
                ranks[slot, part] = padded
                a[slot, part * rank : part * rank + padded] = 0
                a[slot, part * rank : part * rank + own] = torch.from_numpy(pair[0]).to(device, dtype)
                b[slot, begin : begin + width, :padded] = 0
                b[slot, begin : begin + width, :own] = torch.from_numpy(pair[1]).to(device, dtype).T
            begin += width
    adapters = torch.tensor([slot if slot >= 0 else slots for slot in problem.adapters])
    ends = torch.tensor([int((adapters <= slot).sum()) for slot in range(slots)])
    lists = {"rows": torch.sort(adapters, stable=True).indices, "ends": ends}
    return {"a": a, "b": b, "ranks": ranks} | {name: list_.int().to(device) for name, list_ in lists.items()}


def _slots(
    problem: Problem, slots: int, dtype: torch.dtype, device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views [slots, ...] of the matrices a and b, full of NaN, and of ranks of 0, which lie in one piece by slot."""
    shapes = ((problem.parts * problem.max_rank, problem.in_features), (sum(problem.widths), problem.max_rank))
    ends = [0]
    for rows, columns in shapes:
        ends.append(ends[-1] + _aligned(rows * columns * 2))
    stride = ends[-1] + _aligned(problem.parts * 4)
    memory = torch.full((slots * stride // 2,), POISON, device=device, dtype=dtype)
    a, b = (
        memory.as_strided((slots, *shape), (stride // 2, shape[1], 1), begin // 2)
        for shape, begin in zip(shapes, ends, strict=False)
    )
    ranks = memory.view(torch.int32).as_strided((slots, problem.parts), (stride // 4, 1), ends[-1] // 4)
    return a, b, ranks.zero_()


def _from_first(slots: torch.Tensor) -> torch.Tensor:
    """All memory from the first slot's matrix on."""
    count = slots.untyped_storage().nbytes() // slots.element_size() - slots.storage_offset()
    return slots.as_strided((count,), (1,))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // 256) * 256


def _launch(problem: Problem, machine: Machine, tensors: dict[str, torch.Tensor | None]) -> None:
    rows, columns = len(problem.adapters), problem.parts * problem.max_rank
    splits = num_splits(problem.in_features, rows)
    projected = torch.full((rows, splits, columns), POISON, device=machine.device)
    buffers = {
        name: Buffer(name, _DTYPES.get(tensor.dtype, "int32"), tuple(tensor.shape))
        for name, tensor in (tensors | {"projected": projected}).items()
        if tensor is not None
    }
    of = {buffers[name]: tensor for name, tensor in (tensors | {"projected": projected}).items() if name in buffers}
    stride = tensors["a"].stride(0) * 2 // 256
    of |= {buffers[name]: _from_first(tensors[name]) for name in ("a", "b", "ranks")}
    slots = AdapterMatrices(*(buffers[name] for name in ("a", "b", "ranks")), problem.widths)
    listed = AdapterRows(buffers["rows"], buffers["ends"], symbol("num_tokens"))
    first = shrink(buffers["projected"], buffers["x"], slots, listed)
    second = expand(buffers["y"], buffers["projected"], slots, listed, buffers.get("residual"))
    for one in (first, second):
        _run(one, machine, of, {"num_tokens": rows, "num_loras": len(problem.ranks), "adapter_stride": stride})


def _run(one: Launch, machine: Machine, of: dict[Buffer, torch.Tensor], symbols: dict[str, int]) -> None:
    """Run one launch, with tensors in the place of buffers."""

    def number(extent: Extent) -> int:
        return extent.const + sum(-(-symbols[name] * times // by) for name, times, by in extent.terms)

    def argument(given: Argument) -> torch.Tensor | int | None:
        if isinstance(given, Extent):
            return number(given)
        if isinstance(given, int) or given is None:
            return given
        return of[given]

    kernel = machine.kernel(
        one.kernel.source, one.kernel.name, one.kernel.threads, one.kernel.shared_bytes, dict(one.kernel.defines)
    )
    x, y, z = (number(extent) for extent in one.grid)
    kernel(*(argument(given) for given in one.arguments), grid=(x, y, z))
