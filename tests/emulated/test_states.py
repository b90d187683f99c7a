"""Operators with a recurrent state, without a GPU."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulated.emulator import Emulator
from tests.gpu.state_checks import (
    StateKernel,
    check_a_token_that_repeats,
    check_divided,
    check_gated_rms_norm,
    check_grouped_rms_norm,
    check_state_steps,
)
from tests.rounds import rounds
from tests.state_batch import (
    Operator,
    causal_conv,
    check_tokens_are_taken_back,
    check_what_is_kept,
    gated_delta_rule,
    mamba2,
)
from trtllm_lite.plugins.causal_conv import cuda as causal_conv_of_gpus

LENGTHS = [13, 42, 70]
STEPS = [[(0, 7), (1, 40), (2, 1)], [(0, 1), (2, 1), (1, 0)], [(2, 50), (1, 2), (0, 5)], [(2, 18)]]
COUNTS = st.lists(st.integers(0, 19) | st.just(1), min_size=3, max_size=3).filter(any)


@pytest.mark.parametrize(("channels", "width", "decode"), [(8, 2, False), (264, 4, False), (40, 6, True)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_causal_conv(channels: int, width: int, decode: bool, dtype: torch.dtype) -> None:
    bias, weights = dtype == torch.float16, np.float16 if dtype == torch.float16 else ml_dtypes.bfloat16
    activation = "none" if decode else "silu"
    operator = causal_conv(channels, width, bias=bias, activation=activation, dtype=weights)
    check_state_steps(operator, LENGTHS, STEPS, dtype, Emulator(), decode=decode)


@pytest.mark.parametrize("channels", [8, 22])  # a thread has four of them, or two
@pytest.mark.parametrize("many_blocks", [3, 256])
@pytest.mark.parametrize("many", [False, True])
def test_blocks_of_a_causal_conv(channels: int, many_blocks: int, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks have one token, or several of a sequence or of many, of which some have no new tokens."""
    monkeypatch.setattr(causal_conv_of_gpus, "_MANY_BLOCKS", many_blocks)
    lengths, steps = LENGTHS, STEPS
    if many:
        lengths = [9] * 70
        steps = [[(sequence, (sequence * part + 1) % 4) for sequence in range(70)] for part in (1, 2, 3)]
    check_state_steps(causal_conv(channels, 4), lengths, steps, torch.bfloat16, Emulator())


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 8, 8), (3, 6, 24, 40), (1, 2, 128, 64), (1, 3, 7, 136), (1, 2, 16, 128)])
def test_gated_delta_rule(sizes: tuple[int, int, int, int], by_channel: bool) -> None:
    operator = gated_delta_rule(*sizes, by_channel=by_channel)
    check_state_steps(operator, LENGTHS, STEPS, torch.bfloat16, Emulator())
    check_state_steps(operator, LENGTHS, STEPS, torch.float16, Emulator(), decode=True)


@pytest.mark.parametrize("sizes", [(1, 1, 8, 8), (6, 2, 24, 40), (2, 1, 128, 64), (3, 3, 7, 136)])
def test_mamba2(sizes: tuple[int, int, int, int]) -> None:
    check_state_steps(mamba2(*sizes), LENGTHS, STEPS, torch.bfloat16, Emulator())
    check_state_steps(mamba2(*sizes), LENGTHS, STEPS, torch.float16, Emulator(), decode=True)


@pytest.mark.parametrize("taken_back", [0, 1, 4])
@pytest.mark.parametrize("max_decode_seqs", [1, 1 << 10])
def test_every_token_of_a_chunk(taken_back: int, max_decode_seqs: int) -> None:
    """Steps end at the last token of a chunk, and at the first of the next."""
    operator, steps = gated_delta_rule(1, 2, 64, 32, taken_back=taken_back), [[(0, 14)], *[[(0, 1)]] * 20, [(0, 3)]]
    machine = Emulator()
    check_state_steps(operator, [37], steps, torch.float16, machine, decode=True, max_decode_seqs=max_decode_seqs)


@pytest.mark.parametrize(
    "operator",
    [
        gated_delta_rule(3, 6, 64, 32),
        gated_delta_rule(1, 2, 128, 64),
        gated_delta_rule(1, 2, 64, 128, by_channel=True),
        gated_delta_rule(1, 2, 64, 96, state_dtype="bfloat16"),
        mamba2(6, 2, 64, 32),
        mamba2(2, 1, 128, 64, state_dtype="float16"),
    ],
)
@pytest.mark.parametrize("decode", [False, True])
def test_blocks_that_copy_states_ahead(operator: Operator, decode: bool) -> None:
    check_state_steps(operator, LENGTHS, STEPS, torch.float16, Emulator(), decode=decode, max_decode_seqs=1 << 10)


@pytest.mark.parametrize("operator", [gated_delta_rule(1, 128, 16, 48), mamba2(128, 1, 16, 64)])
def test_blocks_of_many_columns(operator: Operator) -> None:
    """Kernels for long sequences have them if there are many heads."""
    check_state_steps(operator, [40], [[(0, 33)], [(0, 7)]], torch.bfloat16, Emulator())


def test_matrices_of_many_columns() -> None:
    """The blocks of a cluster take their columns in several turns."""
    check_state_steps(gated_delta_rule(1, 1, 8, 1100), [20], [[(0, 9)], [(0, 11)]], torch.bfloat16, Emulator())


@pytest.mark.parametrize(
    "operator",
    [
        gated_delta_rule(1, 1, 32, 32),
        gated_delta_rule(1, 1, 16, 16),
        gated_delta_rule(1, 1, 32, 64, state_dtype="bfloat16"),
        mamba2(1, 1, 32, 32, state_dtype="bfloat16"),
    ],
)
def test_more_chunks_than_slots(operator: Operator) -> None:
    """Slots of chunks are used again, and by both blocks of a cluster, if a head has several."""
    check_state_steps(operator, [240], [[(0, 200)], [(0, 37)]], torch.bfloat16, Emulator())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_token_that_repeats(dtype: torch.dtype) -> None:
    check_a_token_that_repeats(gated_delta_rule(1, 2, 32, 32), 60, dtype, Emulator())


@pytest.mark.parametrize("make", [gated_delta_rule, mamba2])
@pytest.mark.parametrize("state_dtype", ["float16", "bfloat16"])
def test_a_matrix_of_16_bits(make: Callable[..., Operator], state_dtype: str) -> None:
    check_state_steps(make(2, 2, 7, 21, state_dtype=state_dtype), LENGTHS, STEPS, torch.bfloat16, Emulator())


@pytest.mark.parametrize("state_dtype", ["float16", "bfloat16"])
def test_what_a_matrix_of_16_bits_keeps(state_dtype: str) -> None:
    """The numbers are those that inputs of 16 bits can be."""
    exact = 2**-7 if state_dtype == "float16" else 2**-8
    numbers = [1 + exact, 1 + 3 * exact, -1 - exact, 0.0, np.nan]
    numbers += [65280.0, 2.0**16, -(2.0**17), 2.0**100] if state_dtype == "float16" else [65504.0]
    dtype = torch.bfloat16 if state_dtype == "float16" else torch.float16
    check_what_is_kept(state_dtype, numbers, lambda operator: StateKernel(operator, dtype, Emulator()))


OPERATORS = [
    causal_conv(8, 5),
    gated_delta_rule(1, 2, 64, 32),
    gated_delta_rule(1, 2, 24, 40),
    gated_delta_rule(1, 1, 8, 8, by_channel=True),
    mamba2(2, 1, 24, 40),
    mamba2(1, 1, 7, 21, state_dtype="bfloat16"),
]
OF_CHUNKS = [gated_delta_rule(1, 2, 16, 32), mamba2(2, 1, 32, 16)]


@pytest.mark.parametrize("operator", OPERATORS)
@given(seed=st.integers(0, 1 << 20))
@settings(deadline=None, max_examples=rounds(8))
def test_tokens_are_taken_back(operator: Operator, seed: int) -> None:
    kernel = StateKernel(operator, torch.float16, Emulator(), deterministic=True)
    check_tokens_are_taken_back(operator, kernel, seed)


@pytest.mark.parametrize("operator", OF_CHUNKS)
@given(seed=st.integers(0, 1 << 20))
@settings(deadline=None, max_examples=rounds(4))
def test_tokens_of_long_sequences_are_taken_back(operator: Operator, seed: int) -> None:
    check_tokens_are_taken_back(operator, StateKernel(operator, torch.float16, Emulator()), seed, "float16")


@pytest.mark.parametrize("operator", OPERATORS)
@given(counts=st.lists(COUNTS, min_size=1, max_size=4))
@settings(deadline=None, max_examples=rounds(20))
def test_a_sequence_gets_the_same_bits_however_it_is_divided(operator: Operator, counts: list[list[int]]) -> None:
    steps = [list(enumerate(step)) for step in counts]
    check_divided(operator, steps, torch.float16, Emulator())


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize("others", [6, 8])  # a lane reads two elements of the gate, or eight
@pytest.mark.parametrize(("rows", "groups", "size"), [(1, 1, 8), (5, 3, 40), (3, 9, 128), (2, 17, 264)])
def test_gated_rms_norm(rows: int, groups: int, size: int, others: int, activation: str) -> None:
    check_gated_rms_norm(rows, groups, size, torch.bfloat16, Emulator(), activation, others)


@pytest.mark.parametrize("order", ["gate_first", "gate_last"])
@pytest.mark.parametrize(("rows", "groups", "size", "threads"), [(1, 1, 8, 32), (5, 3, 40, 32), (2, 2, 642, 64)])
def test_grouped_rms_norm(rows: int, groups: int, size: int, threads: int, order: str) -> None:
    check_grouped_rms_norm(rows, groups, size, order, torch.bfloat16, Emulator(), threads)
