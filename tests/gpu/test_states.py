"""Operators with a recurrent state on a GPU, in the extents of Qwen3-Next and Granite 4."""

import numpy as np
import pytest
import torch

from tests.gpu.device import GPU
from tests.gpu.state_checks import (
    StateKernel,
    check_a_token_that_repeats,
    check_divided,
    check_gated_rms_norm,
    check_grouped_rms_norm,
    check_state_steps,
)
from tests.state_batch import (
    Operator,
    causal_conv,
    check_tokens_are_taken_back,
    gated_delta_rule,
    in_wider_rows,
    mamba2,
)

LENGTHS = [13, 420, 700]
STEPS = [[(0, 7), (1, 400), (2, 1)], [(0, 1), (2, 1), (1, 0)], [(2, 500), (1, 20), (0, 5)], [(2, 198)]]
OPERATORS = [
    causal_conv(8192, 4, bias=False, dtype=np.float16),
    causal_conv(264, 4, activation="none", dtype=np.float16),
    gated_delta_rule(16, 32, 128, 128),
    gated_delta_rule(3, 6, 24, 40),
    gated_delta_rule(8, 8, 128, 128, by_channel=True),
    mamba2(128, 1, 128, 64),
    mamba2(6, 2, 24, 40),
    mamba2(8, 8, 256, 64),
    gated_delta_rule(16, 32, 128, 128, state_dtype="float16"),
    gated_delta_rule(1, 3, 7, 21, by_channel=True, state_dtype="bfloat16"),
    mamba2(64, 8, 128, 64, state_dtype="bfloat16"),
    in_wider_rows(causal_conv(8192, 4, bias=False, dtype=np.float16)),
    in_wider_rows(gated_delta_rule(16, 32, 128, 128)),
    in_wider_rows(mamba2(128, 1, 128, 64)),
]


STEPS_OF_FEW = [[(0, 7), (1, 33), (2, 1)], [(0, 1), (1, 0), (2, 90)], [(0, 5), (1, 1), (2, 1)]]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("decode", "max_decode_seqs"), [(False, 1), (False, 1 << 10), (True, 1), (True, 1 << 10)])
def test_steps(operator: Operator, decode: bool, max_decode_seqs: int) -> None:
    check_state_steps(operator, LENGTHS, STEPS, torch.float16, GPU, decode=decode, max_decode_seqs=max_decode_seqs)


@pytest.mark.parametrize("taken_back", [0, 1, 4])
@pytest.mark.parametrize("max_decode_seqs", [1, 1 << 10])
def test_every_token_of_a_chunk(taken_back: int, max_decode_seqs: int) -> None:
    operator, steps = gated_delta_rule(16, 32, 128, 128, taken_back=taken_back), [[(0, 14)], *[[(0, 1)]] * 20, [(0, 3)]]
    check_state_steps(operator, [37], steps, torch.float16, GPU, decode=True, max_decode_seqs=max_decode_seqs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_token_that_repeats(dtype: torch.dtype) -> None:
    check_a_token_that_repeats(gated_delta_rule(16, 32, 128, 128), 700, dtype, GPU)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_sequence_gets_the_same_bits_however_it_is_divided(operator: Operator) -> None:
    check_divided(operator, STEPS_OF_FEW, torch.float16, GPU)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_taken_back(operator: Operator, seed: int) -> None:
    check_tokens_are_taken_back(operator, StateKernel(operator, torch.float16, GPU, deterministic=True), seed)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("operator", [gated_delta_rule(16, 32, 128, 128), mamba2(128, 1, 128, 64)])
def test_tokens_of_long_sequences_are_taken_back(operator: Operator, seed: int) -> None:
    check_tokens_are_taken_back(operator, StateKernel(operator, torch.float16, GPU), seed, "float16")


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize("rows", [1, 3, 129])
@pytest.mark.parametrize(("groups", "size", "others"), [(32, 128, 8), (32, 128, 6), (3, 40, 8)])
def test_gated_rms_norm(rows: int, groups: int, size: int, others: int, activation: str) -> None:
    check_gated_rms_norm(rows, groups, size, torch.bfloat16, GPU, activation, others)


@pytest.mark.parametrize("rows", [1, 3, 129])
@pytest.mark.parametrize("order", ["gate_first", "gate_last"])
@pytest.mark.parametrize(("groups", "size", "threads"), [(1, 8192, 512), (8, 512, 32), (3, 40, 32)])
def test_grouped_rms_norm(rows: int, groups: int, size: int, threads: int, order: str) -> None:
    check_grouped_rms_norm(rows, groups, size, order, torch.bfloat16, GPU, threads)
