"""Operators with a recurrent state: values, blocks of states, and sequences that are divided into steps anywhere."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.falcon_h1 import modeling_falcon_h1 as falcon_h1
from transformers.models.kimi_linear import modeling_kimi_linear as kimi_linear
from transformers.models.mamba2 import modeling_mamba2
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from tests.plugins.harness import WEIGHT_DTYPES, assert_same_bits, reference, run
from tests.plugins.test_bounds import run_guarded
from tests.rounds import rounds
from tests.state_batch import (
    Arrays,
    Operator,
    Run,
    Sequences,
    causal_conv,
    check_states,
    check_tokens_are_taken_back,
    check_what_is_kept,
    gated_delta_rule,
    in_wider_rows,
    mamba2,
    run_steps,
)
from tests.tolerances import KERNEL_TOLERANCES, STATE_TOLERANCES, assert_close
from trtllm_lite import _testing
from trtllm_lite.errors import EngineError
from trtllm_lite.plugins.replay import Replay
from trtllm_lite.plugins.state_spans import StateSpan

ISA = _testing.supported_isas()[0]
LENGTHS = [13, 42, 90]
STEPS = [[(0, 7), (1, 40), (2, 1)], [(0, 1), (2, 1), (1, 0)], [(2, 70), (1, 2), (0, 5)], [(2, 18)]]
SPACES = [(1, 1, 8, 8), (6, 2, 24, 40), (8, 4, 128, 64), (3, 1, 7, 65), (4, 4, 130, 33)]
RULES = [(1, 1, 8, 8), (3, 6, 24, 40), (2, 4, 128, 128), (1, 3, 7, 65), (2, 2, 130, 33)]


def kernel(operator: Operator, isa: str, num_threads: int = 2) -> Run:
    """A function that runs the operator's CPU kernel."""

    def called(inputs: Arrays, attributes: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        y, states = run(operator.name, inputs, attributes, isa=isa, num_threads=num_threads).values()
        return y, states

    return called


def check_steps(operator: Operator, isa: str) -> None:
    """Check results and states of each step, of which each begins with the kernel's own states."""
    sequences = Sequences(operator, LENGTHS)
    for new_tokens in STEPS:
        expected = reference(operator.name, sequences.inputs(new_tokens), operator.attributes)
        y, states = expected.values()
        found = np.concatenate(sequences.step(new_tokens, kernel(operator, isa)))
        assert_close(found, y, states.dtype.name, "results", STATE_TOLERANCES)
        check_states(operator, sequences.states, states)


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize(("channels", "width"), [(1, 2), (33, 4), (160, 4), (515, 7)])
def test_causal_conv(isa: str, dtype: str, channels: int, width: int) -> None:
    for activation in ("none", "silu"):
        bias = activation == "none"
        check_steps(causal_conv(channels, width, bias=bias, activation=activation, dtype=WEIGHT_DTYPES[dtype]), isa)


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("sizes", RULES)
def test_gated_delta_rule(isa: str, sizes: tuple[int, int, int, int], by_channel: bool) -> None:
    check_steps(gated_delta_rule(*sizes, by_channel=by_channel), isa)


OPERATORS = [
    causal_conv(40, 5),
    gated_delta_rule(3, 6, 24, 40),
    gated_delta_rule(1, 2, 24, 40, by_channel=True),
    gated_delta_rule(1, 3, 7, 21, state_dtype="bfloat16"),
    mamba2(6, 3, 24, 40),
    mamba2(6, 3, 24, 40, state_dtype="float16"),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("make", [gated_delta_rule, mamba2])
@pytest.mark.parametrize("sizes", [(3, 6, 24, 40), (1, 3, 7, 65)])
def test_a_matrix_of_16_bits(isa: str, sizes: tuple[int, int, int, int], make: Any, dtype: str) -> None:
    sizes = sizes if make is gated_delta_rule else (sizes[1], sizes[0], *sizes[2:])
    check_steps(make(*sizes, state_dtype=dtype), isa)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_a_matrix_of_16_bits_keeps(isa: str, dtype: str) -> None:
    halfway = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-11, 1 + 3 * 2**-11, 5 * 2**-25, 3 * 2**-25, 2**-26, 1e-40, 0.0]
    beyond = [65504.0, 65519.0, 65520.0, -1e5, 3.389e38, 3.4e38, -3.4e38, np.inf, np.nan]
    check_what_is_kept(dtype, halfway + beyond, lambda operator: kernel(operator, isa))


def test_states_have_the_size_that_their_type_needs() -> None:
    operator = gated_delta_rule(1, 2, 7, 21, state_dtype="bfloat16")
    inputs = Sequences(operator, [3]).inputs([(0, 3)])
    inputs[5] = inputs[5][..., :-1]
    size = operator.layout.size if operator.layout else 0
    with pytest.raises(EngineError, match=f"state_size: expected {size} elements, found {size - 1}"):
        run(operator.name, inputs, operator.attributes)


@pytest.mark.parametrize("operator", OPERATORS)
@given(seed=st.integers(0, 1 << 20))
@settings(deadline=None, max_examples=rounds(60))
def test_tokens_are_taken_back(operator: Operator, seed: int) -> None:
    check_tokens_are_taken_back(operator, kernel(operator, ISA, 2), seed)


@pytest.mark.parametrize("sizes", SPACES)
def test_mamba2(isa: str, sizes: tuple[int, int, int, int]) -> None:
    check_steps(mamba2(*sizes), isa)


@st.composite
def divisions(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Steps of three sequences in any order, some of which have no token in a step."""
    counts = st.lists(st.integers(0, 21) | st.just(1), min_size=3, max_size=3).filter(any)
    steps = draw(st.lists(counts, min_size=1, max_size=6))
    return [draw(st.permutations(list(enumerate(step)))) for step in steps]


@pytest.mark.parametrize("operator", OPERATORS)
@given(steps=divisions())
@settings(deadline=None, max_examples=rounds(100))
def test_a_sequence_gets_the_same_bits_however_it_is_divided(operator: Operator, steps: list) -> None:
    lengths = [sum(dict(step)[sequence] for step in steps) for sequence in range(3)]
    whole = run_steps(Sequences(operator, lengths), [list(enumerate(lengths))], kernel(operator, ISA, 1))
    parts = run_steps(Sequences(operator, lengths), steps, kernel(operator, ISA, 3))
    for expected, found in zip(whole, parts, strict=True):
        assert_same_bits(found, expected)


@pytest.mark.parametrize("operator", [causal_conv(40, 4), gated_delta_rule(1, 2, 24, 40), mamba2(2, 1, 24, 40)])
@pytest.mark.parametrize("part", [0, -1])
def test_a_row_of_nan_stays_in_its_sequence(isa: str, operator: Operator, part: int) -> None:
    clean, dirty = Sequences(operator, LENGTHS), Sequences(operator, LENGTHS)
    dirty.rows[1][part][3] = np.nan
    expected, made = (sequences.step(STEPS[0], kernel(operator, isa)) for sequences in (clean, dirty))
    assert_same_bits(made[1][:3], expected[1][:3])
    assert np.isnan(made[1][3:7]).all()
    for sequence in (0, 2):
        assert_same_bits(made[sequence], expected[sequence])
        assert_same_bits(dirty.states[dirty.state_block(sequence)], clean.states[clean.state_block(sequence)])


def test_gates_far_from_zero(isa: str) -> None:
    """Gates of any size give decays and betas between 0 and 1."""
    operator = gated_delta_rule(1, 4, 16, 16)
    sequences = Sequences(operator, [24])
    for gates in sequences.rows[0][1:]:
        gates[:] = np.resize([-1e4, -90, -30, 0, 19.9, 20.1, 90, 1e4], gates.shape)
    expected = reference(operator.name, sequences.inputs([(0, 24)]), operator.attributes)
    (found,) = sequences.step([(0, 24)], kernel(operator, isa))
    assert_close(found, expected["y"], what="results", table=STATE_TOLERANCES)


def test_key_heads_divide_value_heads() -> None:
    operator = gated_delta_rule(2, 4, 8, 8)
    inputs = Sequences(operator, [3]).inputs([(0, 3)])
    inputs[0] = np.ones((3, 2 * 3 * 8 + 4 * 8), np.float32)
    with pytest.raises(EngineError, match="num_key_heads: expected a divisor of 4 value heads, found 3"):
        run(operator.name, inputs, {**operator.attributes, "num_key_heads": 3})


@pytest.mark.parametrize("bounds", [(0.0, float(np.finfo(np.float32).max)), (0.5, 3.0)])
def test_steps_far_from_zero(isa: str, bounds: tuple[float, float]) -> None:
    operator = mamba2(4, 1, 16, 16, bounds=bounds)
    sequences = Sequences(operator, [24])
    steps = sequences.rows[0][1]
    steps[:] = np.resize([-1e4, -90, -30, 0, 19.9, 20.1, 90, 1e4], steps.shape)
    expected = reference(operator.name, sequences.inputs([(0, 24)]), operator.attributes)
    (found,) = sequences.step([(0, 24)], kernel(operator, isa))
    assert_close(found, expected["y"], what="results", table=STATE_TOLERANCES)


def test_groups_divide_heads() -> None:
    operator = mamba2(4, 2, 8, 8)
    inputs = Sequences(operator, [3]).inputs([(0, 3)])
    inputs[0] = np.ones((3, 4 * 8 + 2 * 3 * 8), np.float32)
    with pytest.raises(EngineError, match="num_groups: expected a divisor of 4 heads, found 3"):
        run(operator.name, inputs, {**operator.attributes, "num_groups": 3})


@pytest.mark.parametrize("tokens", [1, 63, 64, 200])
def test_the_space_of_transformers(isa: str, tokens: int) -> None:
    """transformers computes chunks of 64 tokens in another way."""
    operator = mamba2(6, 2, 24, 40)
    sequences = Sequences(operator, [tokens + 9])
    sequences.step([(0, 9)], kernel(operator, isa))
    before = _matrix(operator, sequences)
    xbc, dt = (torch.from_numpy(part[9:]) for part in sequences.rows[0])
    x, b, c = xbc.split([240, 48, 48], 1)
    a_log, dt_bias, d = (torch.from_numpy(weight) for weight in operator.weights)
    y, state = modeling_mamba2.mamba2_chunk_scan(
        x.view(1, tokens, 6, 40),
        dt[None],
        -a_log.exp(),
        b.view(1, tokens, 2, 24),
        c.view(1, tokens, 2, 24),
        64,
        D=d,
        dt_bias=dt_bias,
        initial_states=torch.from_numpy(before)[None].transpose(2, 3),
        dt_softplus=True,
        dt_limit=(operator.attributes["min_step"], operator.attributes["max_step"]),
        return_final_states=True,
    )
    (found,) = sequences.step([(0, tokens)], kernel(operator, isa))
    assert_close(found, y.reshape(tokens, -1).numpy(), what="results", table=STATE_TOLERANCES)
    assert_close(_matrix(operator, sequences), state[0].transpose(1, 2).numpy(), what="states", table=STATE_TOLERANCES)


@pytest.mark.parametrize("tokens", [1, 63, 64, 200])
def test_the_delta_rule_of_transformers(isa: str, tokens: int) -> None:
    """transformers computes chunks of 64 tokens in another way, and tokens one by one if there is a single one."""
    operator = gated_delta_rule(2, 6, 24, 40)
    sequences = Sequences(operator, [tokens + 9])
    sequences.step([(0, 9)], kernel(operator, isa))
    before = _matrix(operator, sequences)
    qkv, a, b = (torch.from_numpy(part[9:]).double() for part in sequences.rows[0])
    query, key, value = qkv.split([48, 48, 240], 1)
    query, key = (part.view(1, tokens, 2, 24).repeat_interleave(3, 2) for part in (query, key))
    a_log, dt_bias = (torch.from_numpy(weight).double() for weight in operator.weights)
    decay = -a_log.exp() * torch.nn.functional.softplus(a + dt_bias)
    name = "torch_recurrent_gated_delta_rule" if tokens == 1 else "torch_chunk_gated_delta_rule"
    rows = [query, key, value.view(1, tokens, 6, 40), decay[None], b.sigmoid()[None]]
    y, state = getattr(qwen3_next, name)(
        *(part.float() for part in rows),
        initial_state=torch.from_numpy(before)[None],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    (found,) = sequences.step([(0, tokens)], kernel(operator, isa))
    assert_close(found, y.reshape(tokens, -1).numpy(), what="results", table=STATE_TOLERANCES)
    assert_close(_matrix(operator, sequences), state[0].numpy(), what="states", table=STATE_TOLERANCES)


def _matrix(operator: Operator, sequences: Sequences) -> np.ndarray:
    """The matrices of the first sequence with all its tokens, float32 [heads, key_dim, value_dim]."""
    assert operator.layout is not None
    past = sequences.done[0]
    replay = Replay(operator.layout, sequences.states[sequences.state_block(0)], StateSpan(slice(0, 0), past, 0))
    return replay.matrix.astype(np.float32)


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize(("rows", "groups", "size"), [(1, 1, 1), (5, 3, 40), (33, 4, 128), (70, 2, 65)])
def test_gated_rms_norm(isa: str, rows: int, groups: int, size: int, activation: str) -> None:
    rng = np.random.default_rng([rows, groups, size])
    x, gate = 3 * rng.standard_normal((2, rows, groups * size), np.float32)
    weight = rng.standard_normal(size, np.float32)
    attributes = {"epsilon": 1e-5, "activation": activation, "gate_first": 0}
    actual = run("GatedRmsNorm", [x, gate, weight], attributes, isa=isa, num_threads=3)["y"]
    expected = reference("GatedRmsNorm", [x, gate, weight], attributes)["y"]
    assert_close(actual, expected, what="results", table=KERNEL_TOLERANCES)
    made = qwen3_next.Qwen3NextRMSNormGated if activation == "silu" else kimi_linear.KimiLinearRMSNormGated
    norm = made(size, eps=1e-5)
    norm.weight.data = torch.from_numpy(weight)
    of_groups = [torch.from_numpy(part).view(-1, size) for part in (x, gate)]
    with torch.no_grad():
        theirs = norm(*of_groups).view(rows, -1).numpy()
    assert_close(actual, theirs, what="results", table=KERNEL_TOLERANCES)
    last = run("GatedRmsNorm", [x[-1:], gate[-1:], weight], attributes, isa=isa, num_threads=1)["y"]
    assert_same_bits(last, actual[-1:])


@pytest.mark.parametrize("order", ["gate_first", "gate_last"])
@pytest.mark.parametrize(("rows", "groups", "size"), [(1, 1, 1), (5, 3, 40), (33, 1, 512), (70, 2, 65)])
def test_grouped_rms_norm(isa: str, rows: int, groups: int, size: int, order: str) -> None:
    rng = np.random.default_rng([rows, groups, size])
    x, gate = 3 * rng.standard_normal((2, rows, groups * size), np.float32)
    weight = rng.standard_normal((groups, size), np.float32)
    attributes = {"order": order, "epsilon": 1e-5, "gate_first": 0}
    actual = run("GroupedRmsNorm", [x, gate, weight], attributes, isa=isa, num_threads=3)["y"]
    expected = reference("GroupedRmsNorm", [x, gate, weight], attributes)["y"]
    assert_close(actual, expected, what="results", table=KERNEL_TOLERANCES)
    norm = falcon_h1.FalconH1RMSNormGated(groups * size, 1e-5, groups, norm_before_gate=order == "gate_last")
    norm.weight.data = torch.from_numpy(weight).flatten()
    with torch.no_grad():
        theirs = norm(*(torch.from_numpy(part)[None] for part in (x, gate)))[0].numpy()
    assert_close(actual, theirs, what="results", table=KERNEL_TOLERANCES)
    last = run("GroupedRmsNorm", [x[-1:], gate[-1:], weight], attributes, isa=isa, num_threads=1)["y"]
    assert_same_bits(last, actual[-1:])


def test_nothing_is_touched_behind_operands(isa: str) -> None:
    narrow = mamba2(2, 1, 7, 21, state_dtype="float16")
    for operator in (causal_conv(21, 4), gated_delta_rule(1, 2, 7, 21), mamba2(2, 1, 7, 21), narrow):
        sequences = Sequences(operator, [19, 6])
        sequences.states = sequences.states[: sequences.tables[:, 0].max() + 1]
        sequences.step([(0, 2), (1, 6)], kernel(operator, isa))
        run_guarded(operator.name, sequences.inputs([(0, 17)]), dict(operator.attributes), "row_major", isa)
    x = np.ones((3, 21), np.float32)
    wide = np.pad(x, ((0, 0), (5, 0)), constant_values=np.nan)
    for gate, first in ((x, 0), (wide, 5)):
        attributes = {"epsilon": 1e-5, "activation": "silu", "gate_first": first}
        run_guarded("GatedRmsNorm", [x, gate, x[0, :7]], attributes, "row_major", isa)
        for order in ("gate_first", "gate_last"):
            attributes = {"order": order, "epsilon": 1e-5, "gate_first": first}
            run_guarded("GroupedRmsNorm", [x, gate, x[0].reshape(3, 7)], attributes, "row_major", isa)


COLUMNS = [
    causal_conv(33, 4),
    gated_delta_rule(3, 6, 24, 40),
    gated_delta_rule(1, 3, 7, 65, by_channel=True),
    mamba2(3, 1, 7, 65),
]


@pytest.mark.parametrize("operator", COLUMNS)
def test_columns_of_wider_rows(isa: str, operator: Operator) -> None:
    """Results have the same bits as of rows without other columns, which are NaN here."""
    alone, among_others = Sequences(operator, LENGTHS), Sequences(in_wider_rows(operator), LENGTHS)
    for new_tokens in STEPS:
        made = [sequences.step(new_tokens, kernel(operator, isa)) for sequences in (alone, among_others)]
        assert_same_bits(np.concatenate(made[1]), np.concatenate(made[0]))
        assert_same_bits(among_others.states, alone.states)


@pytest.mark.parametrize(
    ("op", "of_norm"), [("GatedRmsNorm", {"activation": "silu"}), ("GroupedRmsNorm", {"order": "gate_first"})]
)
def test_gates_in_wider_rows(isa: str, op: str, of_norm: dict[str, str]) -> None:
    rng = np.random.default_rng(0)
    x, gate = rng.standard_normal((2, 33, 3 * 65), np.float32)
    weight = rng.standard_normal(65 if op == "GatedRmsNorm" else (3, 65), np.float32)
    wide = np.pad(gate, ((0, 0), (7, 9)), constant_values=np.nan)
    rows = [(gate, 0), (wide, 7)]
    alone, among_others = (
        run(op, [x, found, weight], {**of_norm, "epsilon": 1e-5, "gate_first": first}, isa=isa, num_threads=3)["y"]
        for found, first in rows
    )
    assert_same_bits(among_others, alone)


def test_columns_lie_within_rows() -> None:
    for op, name in ((causal_conv(8, 4), "x_first"), (mamba2(2, 1, 8, 8), "dt_first")):
        for first in (-1, 1, (1 << 63) - 1):
            inputs = Sequences(op, [3]).inputs([(0, 3)])
            with pytest.raises(EngineError, match=name):
                run(op.name, inputs, {**op.attributes, name: first})
