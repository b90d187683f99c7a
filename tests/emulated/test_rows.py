"""Row-wise kernels without a GPU: sizes, tails, optional operands."""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.row_checks import (
    check_cache_slots,
    check_channel_magnitudes,
    check_cut_rows,
    check_gate_mul,
    check_gather_columns,
    check_head_layer_norm,
    check_layer_norm,
    check_merge_rows,
    check_mix_streams,
    check_paged_rows,
    check_position_embedding,
    check_query_key_norm,
    check_rescale_rows,
    check_rotary_table,
    check_rowwise,
    check_side_by_side,
)
from trtllm_lite.plugins.rowwise.expression import ARITY

FUNCTIONS = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "reciprocal": torch.reciprocal,
}


@pytest.mark.parametrize(("hidden", "threads"), [(64, 32), (576, 128), (1032, 64)])
@pytest.mark.parametrize(("residual", "bias"), [(False, True), (True, False), (True, True)])
def test_layer_norm(hidden: int, threads: int, residual: bool, bias: bool) -> None:
    dtype = torch.float16 if bias else torch.bfloat16
    check_layer_norm(3, hidden, threads, dtype, residual=residual, bias=bias, machine=Emulator())


@pytest.mark.parametrize(("queries", "keys", "threads"), [(64, 32, 32), (576, 192, 64), (1032, 8, 128)])
def test_query_key_norm(queries: int, keys: int, threads: int) -> None:
    check_query_key_norm(3, queries, keys, threads, torch.bfloat16, Emulator())


@pytest.mark.parametrize(("heads", "others", "head_dim"), [(1, 0, 8), (5, 2, 160), (9, 3, 256)])
def test_head_layer_norm(heads: int, others: int, head_dim: int) -> None:
    check_head_layer_norm(3, heads, others, head_dim, torch.bfloat16, Emulator())


@pytest.mark.parametrize(("hidden", "threads"), [(64, 32), (576, 96), (1032, 64)])
@pytest.mark.parametrize("inputs", [4, 5])
def test_mix_streams(hidden: int, threads: int, inputs: int) -> None:
    dtype = torch.float16 if inputs == 4 else torch.bfloat16
    check_mix_streams(3, hidden, threads, inputs, dtype, Emulator(), whole=inputs == 5)


@pytest.mark.parametrize(("features", "threads"), [(64, 32), (576, 96), (1032, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rescale_and_cut_rows(features: int, threads: int, dtype: torch.dtype) -> None:
    check_rescale_rows(3, features, threads, dtype, Emulator())
    check_cut_rows(3, features, threads, dtype, Emulator())


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu2"])
def test_gate_mul(activation: str) -> None:
    check_gate_mul(3, 1000, activation, torch.float16, Emulator())


@pytest.mark.parametrize("hidden", [64, 1032])
def test_position_embedding(hidden: int) -> None:
    check_position_embedding(5, hidden, torch.bfloat16, Emulator())


@pytest.mark.parametrize("features", [64, 1032])
def test_gather_columns(features: int) -> None:
    check_gather_columns(3, features, Emulator())


@pytest.mark.parametrize(("ranks", "part", "features"), [(2, 64, 128), (3, 1100, 3297), (4, 4, 10)])
def test_side_by_side(ranks: int, part: int, features: int) -> None:
    """All features are kept, or an odd number of them, or none of the last rank's."""
    check_side_by_side(3, ranks, part, features, Emulator())


@pytest.mark.parametrize(("rows", "features"), [(1, 8), (33, 64), (70, 200)])
def test_channel_magnitudes(rows: int, features: int) -> None:
    check_channel_magnitudes(rows, features, torch.bfloat16, Emulator())


@pytest.mark.parametrize(("page", "groups"), [(16, 1), (64, 3)])
def test_cache_slots(page: int, groups: int) -> None:
    check_cache_slots([1, 17, 65, 1, 129], [500, 0, 31, 32, 63], page, groups, Emulator())


@pytest.mark.parametrize(("page", "features", "groups"), [(16, 64, 2), (64, 1032, 1)])
def test_paged_rows(page: int, features: int, groups: int) -> None:
    check_paged_rows([(0, 1), (63, 17), (128, 1), (0, 65), (7, 1)], page, features, Emulator(), groups)


def test_rotary_table() -> None:
    check_rotary_table(torch.tensor([0, 1, 77, 131071], dtype=torch.int32), 24, 1.25, Emulator())


@pytest.mark.parametrize("word", ARITY)
def test_every_operation_of_rowwise(word: str) -> None:
    x = torch.rand(2, 3, 300).to(torch.float16) + 0.25
    inner = "x0 x1" if ARITY[word] == 2 else "x0"
    expected = FUNCTIONS[word](*x.double()[: ARITY[word]])
    check_rowwise(f"{inner} {word}", expected, [x[0], x[1], *[None] * 7], torch.float16, Emulator())


@pytest.mark.parametrize("features", [75, 1048])  # bytes move one by one, or eight at a time
def test_rowwise_of_bytes(features: int) -> None:
    x, constants = torch.randint(0, 256, (3, features), dtype=torch.uint8), torch.tensor([127.5])
    operands = [x, *[None] * 7, constants]
    check_rowwise("x0 c0 sub", x.double() - 127.5, operands, torch.bfloat16, Emulator())


@pytest.mark.parametrize(("merged", "features"), [(1, 64), (4, 1152), (16, 72)])
def test_merge_rows(merged: int, features: int) -> None:
    check_merge_rows(3, merged, features, Emulator())


@pytest.mark.parametrize("features", [301, 1048])  # elements move one by one, or eight at a time
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rowwise_of_every_kind_of_operand(features: int, dtype: torch.dtype) -> None:
    """Operands are 16-bit and float32 rows, a vector, and constants."""
    x, logits = torch.randn(3, features).to(torch.bfloat16), torch.randn(3, features)
    vector, constants = torch.randn(features), torch.tensor([2.5, 0.5])
    expected = 2.5 * torch.tanh((x.double() * vector.double() + logits.double()) / 0.5)
    operands = [x, logits, None, None, vector, None, None, None, constants]
    check_rowwise("x0 v0 mul x1 add c1 div tanh c0 mul", expected, operands, dtype, Emulator())
