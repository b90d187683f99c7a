"""Router, GroupedGatedLinear, GroupedLinear and SigmoidGate: values, ties, and independence of rows."""

import ml_dtypes
import numpy as np
import pytest

from tests.plugins.harness import WEIGHT_DTYPES, as_multiplied, assert_close, assert_same_bits, reference, run
from trtllm_lite.errors import EngineError

SCORINGS = (
    *("softmax", "normalized_softmax", "softmax_of_chosen"),
    *("sigmoid", "normalized_sigmoid", "sigmoid_of_chosen"),
    "sparse_mixer",
)
NO_GROUPS = {"num_groups": 1, "top_groups": 1, "num_best": 1, "scale": 1.0, "threshold": 0.3}
NO_SHARED = {"num_shared": 0, "shared_gate": 0}
SILU = {"activation": "silu", "moe_tp_size": 1, "self_gated": 0}
ONE_RANK = {"moe_tp_size": 1}
BYTES = {"int8": np.int8, "fp8": ml_dtypes.float8_e4m3fn}
# Each routing is (rows, experts, top_k).
ROUTINGS = ((1, 1, 1), (1, 7, 3), (17, 5, 5), (33, 130, 8))


def _own(experts: int) -> dict[str, int]:
    """Attributes of a Router whose rank has all experts."""
    return {"local_experts": experts, "moe_tp_size": 1, **NO_SHARED}


def _choices(rows: int, experts: int, top_k: int) -> np.ndarray:
    """Distinct random experts for each row."""
    rng = np.random.default_rng([rows, experts])
    return np.array([rng.permutation(experts)[:top_k] for _ in range(rows)], np.int32)


def _weight(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(shape)
    weight = rng.standard_normal(shape, np.float32) / np.sqrt(np.float32(shape[-1]))
    return weight.astype(WEIGHT_DTYPES[dtype])


def _route(x: np.ndarray, weight: np.ndarray, top_k: int, scoring: str, isa: str) -> tuple[np.ndarray, np.ndarray]:
    attributes = {"top_k": top_k, "scoring": scoring, **NO_GROUPS, **_own(weight.shape[1])}
    made = run("Router", [x, weight, None], attributes, isa=isa)
    return made["ids"], made["shares"]


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize(("rows", "experts", "top_k"), ROUTINGS)
def test_router_matches_reference(isa: str, rows: int, experts: int, top_k: int, scoring: str) -> None:
    rng = np.random.default_rng([rows, experts, top_k])
    x, weight = rng.standard_normal((rows, 67), np.float32), rng.standard_normal((67, experts), np.float32) / 4
    ids, shares = _route(x, weight, top_k, scoring, isa)
    expected = reference("Router", [x, weight], {"scoring": scoring, "top_k": top_k, **NO_GROUPS, **_own(experts)})
    np.testing.assert_array_equal(ids, expected["ids"])
    assert_close(shares, expected["shares"])


def test_a_bias_of_scores_chooses_and_counts(isa: str) -> None:
    rng = np.random.default_rng(5)
    x, weight = rng.standard_normal((9, 67), np.float32), rng.standard_normal((67, 21), np.float32) / 8
    attributes = {"scoring": "softmax_of_chosen", "top_k": 4, **NO_GROUPS, **_own(21)}
    inputs = [x, weight, None, 3 * rng.standard_normal(21, np.float32)]
    actual, expected = run("Router", inputs, attributes, isa=isa), reference("Router", inputs, attributes)
    np.testing.assert_array_equal(actual["ids"], expected["ids"])
    assert_close(actual["shares"], expected["shares"])


def test_shares_have_factors_of_experts(isa: str) -> None:
    rng = np.random.default_rng(6)
    x, weight = rng.standard_normal((9, 67), np.float32), rng.standard_normal((67, 21), np.float32) / 8
    attributes = {"scoring": "normalized_softmax", "top_k": 4, **NO_GROUPS, **_own(21)}
    inputs = [x, weight, None, None, rng.uniform(0.5, 2, 21).astype(np.float32)]
    actual, expected = run("Router", inputs, attributes, isa=isa), reference("Router", inputs, attributes)
    np.testing.assert_array_equal(actual["ids"], expected["ids"])
    assert_close(actual["shares"], expected["shares"])


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("groups", [(8, 4, 2), (8, 3, 1), (4, 4, 3), (64, 6, 1), (1, 1, 1)], ids=str)
def test_experts_are_of_the_best_groups(isa: str, scoring: str, groups: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(groups)
    x, weight = rng.standard_normal((33, 67), np.float32), rng.standard_normal((67, 64), np.float32) / 8
    correction = rng.standard_normal(64).astype(np.float32)
    num_groups, top_groups, num_best = groups
    attributes = {"top_k": 6, "scoring": scoring, "scale": 2.5, "threshold": 0.3}
    attributes |= {"num_groups": num_groups, "top_groups": top_groups, "num_best": num_best, **_own(64)}
    made = run("Router", [x, weight, correction], attributes, isa=isa)
    expected = reference("Router", [x, weight, correction], attributes)
    np.testing.assert_array_equal(made["ids"], expected["ids"])
    assert_close(made["shares"], expected["shares"])
    assert max(len(set(row // (64 // num_groups))) for row in made["ids"]) <= top_groups


def test_a_row_of_nan_has_experts_of_groups_that_exist(isa: str) -> None:
    x, weight = np.full((3, 9), np.nan, np.float32), np.ones((9, 12), np.float32)
    attributes = {"top_k": 5, "scoring": "sigmoid", **NO_GROUPS, **_own(12)}
    attributes |= {"num_groups": 4, "top_groups": 2, "num_best": 2}
    ids = run("Router", [x, weight, None], attributes, isa=isa)["ids"]
    assert all(len(set(row)) == 5 and set(row) <= set(range(12)) for row in ids)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_groups": 5}, "num_groups: expected a divisor of 12 experts up to 1024, found 5"),
        ({"num_groups": 0}, "num_groups: expected a divisor"),
        ({"num_groups": 2**62}, "num_groups: expected a divisor"),
        ({"top_groups": 5}, "top_groups: expected up to 4 groups that have 4 experts, found 5"),
        ({"top_groups": 1}, "top_groups: expected up to 4 groups that have 4 experts, found 1"),
        ({"num_best": 4}, "num_best: expected up to the 3 experts of a group, found 4"),
        ({"threshold": -0.5}, "threshold: expected 0 or more, found -0.5"),
        ({"num_best": 0}, "num_best: expected up to the 3 experts of a group, found 0"),
        ({"top_k": 0, "num_shared": 4}, "expected top_k >= 1"),
        ({"num_shared": -1}, "expected num_shared >= 0"),
        ({"num_shared": 65536}, r"expected columns \+ num_shared <= 65536"),
        ({"shared_gate": 1}, "expected shared_gate <= num_shared"),
        ({"num_shared": 1, "shared_gate": 2}, "expected shared_gate <= 1"),
        ({"top_k": 12, "num_shared": 1, "shared_gate": 1}, r"expected top_k \+ shared_gate <= columns"),
        ({"num_shared": 1, "shared_gate": 1}, "num_groups: expected a divisor of 11 experts up to 1024, found 4"),
        ({"local_experts": 13}, r"expected local_experts \+ shared_gate <= columns \+ num_shared, found"),
        ({"local_experts": 0}, "expected local_experts >= 1"),
        ({"moe_tp_size": 0}, "expected moe_tp_size >= 1"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(wrong: dict[str, int], message: str) -> None:
    x, weight = np.ones((3, 9), np.float32), np.ones((9, 12), np.float32)
    attributes = {"top_k": 4, "scoring": "sigmoid", **NO_GROUPS, **_own(12)}
    attributes |= {"num_groups": 4, "top_groups": 2, "num_best": 2}
    with pytest.raises(EngineError, match=message):
        run("Router", [x, weight, None], attributes | wrong)


@pytest.mark.parametrize("local", [130, 65, 40, 1])
def test_choices_are_counted(isa: str, local: int) -> None:
    """Choices of the rank's own experts are counted; the last of four ranks has ten of 40 experts."""
    rng = np.random.default_rng(local)
    x, weight = rng.standard_normal((33, 67), np.float32), rng.standard_normal((67, 130), np.float32) / 4
    attributes = {"top_k": 8, "scoring": "softmax", **NO_GROUPS, "local_experts": local, "moe_tp_size": 1, **NO_SHARED}
    made = run("Router", [x, weight], attributes, isa=isa)
    choices = [int((made["ids"] == expert).sum()) for expert in range(130)]
    busiest = max(sum(choices[first : first + local]) for first in range(0, 130, local))
    read = sum(count > 0 for count in choices[:local])
    assert made["tally"].tolist() == [*choices[:local], read, 1, busiest]
    np.testing.assert_array_equal(made["tally"], reference("Router", [x, weight], attributes)["tally"])


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize(("shared", "gate"), [(1, True), (3, True), (2, False)])
@pytest.mark.parametrize(("rows", "experts", "top_k"), [(1, 7, 3), (17, 16, 5), (33, 130, 8)])
def test_all_rows_have_the_shared_experts(
    isa: str, rows: int, experts: int, top_k: int, shared: int, gate: bool, scoring: str
) -> None:
    """The chosen experts are those of a Router without shared ones, which add nothing to their shares."""
    rng = np.random.default_rng([rows, experts, shared])
    x, weight = rng.standard_normal((rows, 67), np.float32), rng.standard_normal((67, experts + gate), np.float32) / 8
    added = [rng.standard_normal(experts, np.float32) for _ in ("correction", "bias")]
    routing = {"top_k": top_k, "scoring": scoring, **NO_GROUPS, "scale": 2.5}
    attributes = routing | _own(experts + shared) | {"num_shared": shared, "shared_gate": int(gate)}
    made = run("Router", [x, weight, *added], attributes, isa=isa)
    alone = run("Router", [x, weight[:, :experts].copy(), *added], routing | _own(experts), isa=isa)
    np.testing.assert_array_equal(made["ids"][:, :top_k], alone["ids"])
    assert_close(made["shares"][:, :top_k], alone["shares"])
    numbers = np.arange(experts, experts + shared)
    np.testing.assert_array_equal(made["ids"][:, top_k:], np.broadcast_to(numbers, (rows, shared)))
    gates = 1 / (1 + np.exp(-(x.astype(np.float64) @ weight[:, experts:]))) if gate else np.ones((rows, 1))
    assert_close(made["shares"][:, top_k:], np.broadcast_to(gates, (rows, shared)).astype(np.float32))
    tally, before = made["tally"], alone["tally"]
    assert tally[:experts].tolist() == before[:experts].tolist()
    of_shared = [rows] * shared
    assert tally[experts:].tolist() == [*of_shared, before[-3] + shared, 1, rows * (top_k + shared)]
    expected = reference("Router", [x, weight, *added], attributes)
    np.testing.assert_array_equal(made["ids"], expected["ids"])
    assert_close(made["shares"], expected["shares"])
    np.testing.assert_array_equal(tally, expected["tally"])


@pytest.mark.parametrize("scoring", SCORINGS)
def test_of_equal_scores_the_lower_expert_is_chosen(isa: str, scoring: str) -> None:
    x, weight = np.ones((2, 3), np.float32), np.ones((3, 40), np.float32)
    ids, shares = _route(x, weight, 4, scoring, isa)
    np.testing.assert_array_equal(ids, [[0, 1, 2, 3]] * 2)
    alone = 1 / (1 + np.exp(-3)) if "sigmoid" in scoring else 1 / 40
    of_four = alone if scoring == "sigmoid_of_chosen" else 1 / 4
    of_left = 1 / (40 - np.arange(4))  # those before are left out
    expected = {"softmax": alone, "sigmoid": alone, "sparse_mixer": of_left}.get(scoring, of_four)
    np.testing.assert_allclose(shares, np.broadcast_to(expected, (2, 4)), rtol=1e-6)


@pytest.mark.parametrize("scoring", SCORINGS)
def test_a_row_of_nan_has_experts_that_exist(isa: str, scoring: str) -> None:
    rng = np.random.default_rng(1)
    x, weight = rng.standard_normal((5, 9), np.float32), rng.standard_normal((9, 11), np.float32)
    clean = _route(x, weight, 3, scoring, isa)
    x[2] = np.nan
    ids, shares = _route(x, weight, 3, scoring, isa)
    assert sorted(set(ids[2])) == sorted(ids[2])
    assert set(ids[2]) <= set(range(11))
    assert np.isnan(shares[2]).all()
    others = [0, 1, 3, 4]
    np.testing.assert_array_equal(ids[others], clean[0][others])
    assert_same_bits(shares[others], clean[1][others])


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize(("rows", "experts", "top_k"), ROUTINGS)
def test_grouped_gated_linear_matches_reference(isa: str, rows: int, experts: int, top_k: int, dtype: str) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 70), np.float32)
    ids, weight = _choices(rows, experts, top_k), _weight((experts, 2, 37, 70), dtype)
    actual = run("GroupedGatedLinear", [x, ids, weight], SILU, isa=isa, layout="gated_panel64")["y"]
    multiplied, _ = as_multiplied([x, weight, None], isa)[:2]
    assert_close(actual, reference("GroupedGatedLinear", [multiplied, ids, weight], SILU)["y"], dtype)


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize(("rows", "experts", "top_k"), ROUTINGS)
def test_grouped_linear_matches_reference(isa: str, rows: int, experts: int, top_k: int, dtype: str) -> None:
    rng = np.random.default_rng(rows)
    x, shares = rng.standard_normal((rows, top_k, 37), np.float32), rng.random((rows, top_k), np.float32)
    ids, weight = _choices(rows, experts, top_k), _weight((experts, 70, 37), dtype)
    actual = run("GroupedLinear", [x, ids, shares, weight], ONE_RANK, isa=isa, layout="panel64")["y"]
    multiplied, _ = as_multiplied([x.reshape(-1, 37), weight, None], isa)[:2]
    assert multiplied is not None
    expected = reference("GroupedLinear", [multiplied.reshape(x.shape), ids, shares, weight], ONE_RANK)["y"]
    assert_close(actual, expected, dtype)


def _blocks(shape: tuple[int, ...], fmt: str) -> list[np.ndarray | None]:
    """Weight, scales and offsets: MXFP4 or 4-bit integers in blocks of 16, or bytes with a scale for each row."""
    rng, numbers = np.random.default_rng(shape), (*shape[:-1], shape[-1] // 16)
    if fmt in BYTES:
        scale = rng.uniform(0.01, 0.02, (*shape[:-1], 1)).astype(np.float32)
        return [(rng.standard_normal(shape, np.float32) * 30).astype(BYTES[fmt]), scale, None]
    if fmt == "mxfp4":
        scale = 2.0 ** rng.integers(-4, -1, numbers)
        elements = rng.standard_normal(shape, np.float32) * 2
        return [elements.astype(ml_dtypes.float4_e2m1fn), scale.astype(ml_dtypes.bfloat16), None]
    scale, offset = (rng.uniform(0.01, 0.1, numbers).astype(np.float16) for _ in range(2))
    return [rng.integers(-8, 8, shape).astype(ml_dtypes.int4), scale, offset]


@pytest.mark.parametrize("fmt", ["mxfp4", "int4", *BYTES])
@pytest.mark.parametrize(("rows", "experts", "top_k"), ROUTINGS)
def test_weights_in_blocks_match_reference(isa: str, rows: int, experts: int, top_k: int, fmt: str) -> None:
    rng, ids = np.random.default_rng(rows), _choices(rows, experts, top_k)
    x, (weight, scale, offset) = rng.standard_normal((rows, 64), np.float32), _blocks((experts, 2, 37, 64), fmt)
    bias = rng.standard_normal((experts, 2, 37), np.float32)
    operands = [ids, weight, scale, bias, offset]
    actual = run("GroupedGatedLinear", [x, *operands], SILU, isa=isa, layout="gated_panel64")["y"]
    multiplied = as_multiplied([x, weight, scale], isa)[0]
    assert_close(actual, reference("GroupedGatedLinear", [multiplied, *operands], SILU)["y"], "bfloat16")
    wide, shares = rng.standard_normal((rows, top_k, 48), np.float32), rng.random((rows, top_k), np.float32)
    weight, scale, offset = _blocks((experts, 70, 48), fmt)
    operands = [ids, shares, weight, scale, rng.standard_normal((experts, 70), np.float32), offset]
    actual = run("GroupedLinear", [wide, *operands], ONE_RANK, isa=isa, layout="panel64")["y"]
    multiplied = as_multiplied([wide.reshape(-1, 48), weight, scale], isa)[0].reshape(wide.shape)
    assert_close(actual, reference("GroupedLinear", [multiplied, *operands], ONE_RANK)["y"], "bfloat16")


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "swiglu_oai", "relu"])
def test_activations_and_biases(isa: str, activation: str) -> None:
    """Gate and up projections exceed the bounds of swiglu_oai on all sides."""
    rng, ids = np.random.default_rng(6), _choices(9, 5, 3)
    x, weight = 8 * rng.standard_normal((9, 70), np.float32), _weight((5, 2, 37, 70), "float32")
    inputs = [x, ids, weight, None, rng.standard_normal((5, 2, 37), np.float32)]
    for self_gated in (0, 1):
        attributes = {"activation": activation, "moe_tp_size": 1, "self_gated": self_gated}
        actual = run("GroupedGatedLinear", inputs, attributes, isa=isa, layout="gated_panel64")["y"]
        assert_close(actual, reference("GroupedGatedLinear", inputs, attributes)["y"])


def _mixture(x: np.ndarray, ids: np.ndarray, shares: np.ndarray, isa: str, num_threads: int = 2) -> np.ndarray:
    gate_up, down = _weight((6, 2, 37, 70), "bfloat16"), _weight((6, 70, 37), "bfloat16")
    wide = run("GroupedGatedLinear", [x, ids, gate_up], SILU, isa=isa, layout="gated_panel64", num_threads=num_threads)[
        "y"
    ]
    inputs = [wide, ids, shares, down]
    return run("GroupedLinear", inputs, ONE_RANK, isa=isa, layout="panel64", num_threads=num_threads)["y"]


def test_experts_of_few_rows_have_the_bits_of_those_of_many(isa: str) -> None:
    """Weights have 4 bits and offsets; the experts with few rows are more than the kernel multiplies at once."""
    rng, experts = np.random.default_rng(8), 40
    ids = np.where(np.arange(65)[:, None] % 2, 1 + _choices(65, experts - 1, 2), [0, 7]).astype(np.int32)
    x, (weight, scale, offset) = rng.standard_normal((65, 64), np.float32), _blocks((experts, 2, 37, 64), "int4")
    wide, shares = rng.standard_normal((65, 2, 48), np.float32), rng.random((65, 2), np.float32)
    down = _blocks((experts, 70, 48), "int4")

    def both(part: slice) -> tuple[np.ndarray, np.ndarray]:
        gated = [x[part], ids[part], weight, scale, None, offset]
        linear = [wide[part], ids[part], shares[part], down[0], down[1], None, down[2]]
        return (
            run("GroupedGatedLinear", gated, SILU, isa=isa, layout="gated_panel64")["y"],
            run("GroupedLinear", linear, ONE_RANK, isa=isa, layout="panel64")["y"],
        )

    whole = both(slice(None))
    for first, rows in [(0, 1), (3, 2), (10, 9), (30, 35)]:
        for found, expected in zip(both(slice(first, first + rows)), whole, strict=True):
            assert_same_bits(found, expected[first : first + rows])


def test_a_row_does_not_depend_on_batch_or_threads(isa: str) -> None:
    rng = np.random.default_rng(3)
    x, shares = rng.standard_normal((129, 70), np.float32), rng.random((129, 3), np.float32)
    ids = _choices(129, 6, 3)
    whole = _mixture(x, ids, shares, isa, num_threads=1)
    for first, rows in [(0, 1), (5, 2), (7, 3), (2, 5), (11, 13), (20, 97)]:
        part = slice(first, first + rows)
        for num_threads in (1, 3):
            assert_same_bits(_mixture(x[part], ids[part], shares[part], isa, num_threads), whole[part])


def test_a_row_of_nan_stays_in_its_row(isa: str) -> None:
    rng = np.random.default_rng(4)
    x, shares = rng.standard_normal((9, 70), np.float32), rng.random((9, 3), np.float32)
    ids = _choices(9, 6, 3)
    clean = _mixture(x, ids, shares, isa)
    x[4], shares[4] = np.nan, np.nan
    y = _mixture(x, ids, shares, isa)
    assert np.isnan(y[4]).all()
    others = [row for row in range(9) if row != 4]
    assert_same_bits(y[others], clean[others])


def test_ids_that_are_no_experts_are_skipped(isa: str) -> None:
    """A plan may contain any numbers as ids; kernels must not access memory outside of their operands."""
    x, weight = np.ones((3, 1, 5), np.float32), np.ones((2, 4, 5), ml_dtypes.bfloat16)
    ids = np.array([[7], [1], [-(2**31)]], np.int32)
    y = run("GroupedLinear", [x, ids, np.ones((3, 1), np.float32), weight], ONE_RANK, isa=isa, layout="panel64")["y"]
    np.testing.assert_array_equal(y, [[0] * 4, [5] * 4, [0] * 4])


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 70, 37), (3, 8, 64)])
def test_sigmoid_gate_matches_reference(isa: str, shape: tuple[int, int, int]) -> None:
    rows, depth, features = shape
    rng = np.random.default_rng(shape)
    x, values = rng.standard_normal((rows, depth), np.float32), rng.standard_normal((rows, features), np.float32)
    inputs = [x, rng.standard_normal((depth, 1), np.float32), values]
    assert_close(run("SigmoidGate", inputs, isa=isa)["y"], reference("SigmoidGate", inputs)["y"])


def test_experts_may_read_rows_times_their_shares(isa: str) -> None:
    rng = np.random.default_rng(5)
    x, shares = rng.standard_normal((17, 70), np.float32), rng.random((17, 3), np.float32)
    ids, weight = _choices(17, 6, 3), _weight((6, 2, 37, 70), "float32")
    inputs = [x, ids, weight, None, None, None, shares]
    wide = run("GroupedGatedLinear", inputs, SILU, isa=isa, layout="gated_panel64")["y"]
    assert_close(wide, reference("GroupedGatedLinear", inputs, SILU)["y"])
    down = [wide, ids, None, _weight((6, 70, 37), "float32")]
    y = run("GroupedLinear", down, ONE_RANK, isa=isa, layout="panel64")["y"]
    assert_close(y, reference("GroupedLinear", down, ONE_RANK)["y"])
