"""Compares the kernels of encoders with float64, on a GPU or emulated: bidirectional attention, pooling."""

from itertools import pairwise

import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import Machine
from tests.gpu.launches import Prepared
from tests.gpu.memory import NAMES
from trtllm_lite.plugins.launch import Buffer, Device
from trtllm_lite.plugins.pooling.cuda import pool
from trtllm_lite.plugins.ragged_attention.launches import Attention, attend, rotate
from trtllm_lite.plugins.ragged_attention.reference import reference

_POOLING_BOUNDS = {"rtol": 1e-5, "atol": 1e-6}


def _ends(lengths: list[int], device: str) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int().to(device)


class _Problem:
    """Random queries, keys and values of texts of ``lengths`` tokens, with the attributes of attention."""

    def __init__(
        self, lengths: list[int], how: Attention, most_distance: int, dtype: torch.dtype, machine: Machine
    ) -> None:
        device, self.how, self.machine, self.dtype = machine.device, how, machine, dtype
        self.qkv = torch.randn(sum(lengths), 3 * how.features, device=device).to(dtype)
        angles = torch.rand(sum(lengths), how.half_dim, device=device) * 7
        self.tables = [angles.cos(), angles.sin()]
        self.ends = _ends(lengths, device)
        self.bias = torch.randn(how.num_heads, 2 * most_distance + 1, device=device) if how.num_distances else None

    def expected(self) -> torch.Tensor:
        """The float64 result from the stored elements; rotated queries and keys are not rounded."""
        tables = [table.cpu().double().numpy() if self.how.half_dim else None for table in self.tables]
        bias = None if self.bias is None else self.bias.cpu().numpy()
        inputs = [self.qkv.cpu().double().numpy(), *tables, self.ends.cpu().numpy(), bias]
        (y,) = reference(inputs, vars(self.how))
        return torch.from_numpy(y).double().to(self.machine.device)

    def run(self, qkv: torch.Tensor, tables: list[torch.Tensor], ends: torch.Tensor, device: Device) -> torch.Tensor:
        """The kernels' result for these rows."""
        how, name = self.how, how_dtype(self.dtype)
        tokens = len(qkv)
        buffers = {
            part: Buffer(part, name, ("num_tokens", size * how.features))
            for part, size in (("y", 1), ("qkv", 3), ("rotated", 2))
        }
        cos, sin = (Buffer(part, "float32", ("num_tokens", how.half_dim)) for part in ("cos", "sin"))
        seqs, bias = Buffer("seqs", "int32", ("num_seqs_plus_1",)), Buffer("bias", "float32", ("num_heads", 1))
        y = torch.full((tokens, how.features), POISON, device=qkv.device, dtype=self.dtype)
        rotated = torch.full((tokens, 2 * how.features), POISON, device=qkv.device, dtype=self.dtype)
        tensors = dict(zip(buffers.values(), (y, qkv, rotated), strict=True)) | {seqs: ends}
        symbols = {"num_tokens": tokens, "num_seqs": len(ends) - 1}
        if how.half_dim:
            tensors |= {cos: tables[0].contiguous(), sin: tables[1].contiguous()}
            Prepared(rotate(buffers["rotated"], buffers["qkv"], cos, sin, how), tensors, symbols, self.machine)()
        if self.bias is not None:
            tensors[bias] = self.bias
        launch = attend(
            *(buffers["y"], buffers["qkv"], buffers["rotated"] if how.half_dim else None, seqs),
            bias if self.bias is not None else None,
            how=how,
            device=device,
            max_seq_len=self.max_seq_len,
        )
        assert launch is not None
        Prepared(launch, tensors, symbols, self.machine)()
        return y

    max_seq_len = 512


def how_dtype(dtype: torch.dtype) -> str:
    """The name of a type in plans."""
    return NAMES[dtype]


def check_ragged_attention(
    lengths: list[int],
    heads: int,
    head_dim: int,
    dtype: torch.dtype,
    *,
    half_dim: int = 0,
    window: int = 0,
    most_distance: int = 0,
    is_long: bool = False,
    shared_bytes: int = 227 * 1024,
    machine: Machine,
) -> None:
    """Check all texts together, and that each alone gives the same bits.

    ``is_long``: blocks of 128 queries. With few ``shared_bytes`` keys come in steps of 32.
    """
    distances = 2 * most_distance + 1 if most_distance else 0
    how = Attention(heads, head_dim, head_dim**-0.5, window, distances, half_dim, how_dtype(dtype))
    assert not how.problems()
    problem, device = _Problem(lengths, how, most_distance, dtype, machine), Device(machine.arch, shared_bytes)
    problem.max_seq_len = 8192 if is_long else 512
    y = problem.run(problem.qkv, problem.tables, problem.ends, device)
    assert_close(y, problem.expected(), by_row=True)
    for first, end in pairwise(problem.ends.tolist()):
        tables = [table[first:end] for table in problem.tables]
        alone = problem.run(problem.qkv[first:end].contiguous(), tables, _ends([end - first], machine.device), device)
        assert torch.equal(alone, y[first:end])


def check_pooling(
    lengths: list[int],
    hidden: int,
    dtype: torch.dtype,
    *,
    takes_mean: bool,
    divides_by_norm: bool,
    machine: Machine,
    to_head: bool = False,
) -> None:
    """Check random rows that are far from centred; the last text's rows are zeros. ``to_head``: y is of ``dtype``."""
    y_dtype = dtype if to_head else torch.float32
    x = 1 + torch.randn(sum(lengths), hidden, device=machine.device)
    x[-lengths[-1] :] = 0
    x, ends = x.to(dtype), _ends(lengths, machine.device)
    y = torch.full((len(lengths), hidden), POISON, dtype=y_dtype, device=machine.device)
    kinds = "float32" if not to_head else how_dtype(dtype), how_dtype(dtype)
    buffers = Buffer("y", kinds[0], ("num_seqs", hidden)), Buffer("x", kinds[1], ("num_tokens", hidden))
    seqs = Buffer("seqs", "int32", ("num_seqs_plus_1",))
    tensors = dict(zip((*buffers, seqs), (y, x, ends), strict=True))
    launch = pool(*buffers, seqs, takes_mean=takes_mean, divides_by_norm=divides_by_norm)
    Prepared(launch, tensors, {"num_seqs": len(lengths)}, machine)()
    parts = [part.double() for part in x.split(lengths)]
    expected = torch.stack([part.mean(0) if takes_mean else part[0] for part in parts])
    if divides_by_norm:
        expected = torch.nn.functional.normalize(expected)
    expected, bounds = (expected.to(dtype), {"rtol": 1e-2, "atol": 1e-6}) if to_head else (expected, _POOLING_BOUNDS)
    torch.testing.assert_close(y.double(), expected.double(), **bounds)
