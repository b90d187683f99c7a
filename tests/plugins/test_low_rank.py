"""LowRank, and the products that add its result: values, and independence of a row from all other rows."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.plugins.harness import assert_close, assert_same_bits, product_dtype, raw, reference
from trtllm_lite import _core
from trtllm_lite.errors import EngineError
from trtllm_lite.plugins.low_rank.reference import low_rank
from trtllm_lite.plugins.packing import pack

IN, MAX_RANK = 45, 16
WIDTHS = (70, 530, 33)  # the second width spans several tasks
ENDS = np.cumsum(WIDTHS)
ATTRIBUTES = {
    **{"first_part": 1, "num_parts": 3, "max_rank": MAX_RANK},
    **{"first_end": int(ENDS[0]), "second_end": int(ENDS[1]), "third_end": int(ENDS[2])},
}


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def adapter(seed: int, ranks: Sequence[int]) -> list:
    """A and B of projections 0 (which belongs to another product) to 3; None where the rank is 0."""
    pairs = [(normal(seed, rank, IN), normal(seed + 1, rank, width)) for rank, width in zip(ranks, WIDTHS, strict=True)]
    return [None, *(pair if rank else None for pair, rank in zip(pairs, ranks, strict=True))]


ADAPTERS = [adapter(1, (5, 16, 8)), [], adapter(3, (0, 1, 0)), adapter(5, (16, 0, 11))]


def run(isa: str, x: np.ndarray, adapters: list, indices: Sequence[int] | None = None, threads: int = 2) -> np.ndarray:
    y = np.full((len(x), ENDS[-1]), np.nan, np.float32)
    projected = np.full((len(x), 3 * MAX_RANK), np.nan, np.float32)
    tokens = None if indices is None else np.array(indices, np.int32)
    _core.run_kernel(
        "LowRank", [x, tokens], [y, projected], ATTRIBUTES, isa=isa, num_threads=threads, adapters=adapters
    )
    return y


def expected(x: np.ndarray, adapters: list) -> np.ndarray:
    pairs = [{part: pair for part, pair in enumerate(one) if pair is not None} for one in adapters]
    return low_rank(x, pairs, 1, WIDTHS)


def test_each_row_has_what_its_adapter_adds(isa: str) -> None:
    chosen = [ADAPTERS[number] for number in (0, 1, 2, 3, 0, 1, 3)]
    x = normal(7, len(chosen), IN)
    y = run(isa, x, chosen)
    assert_close(y, expected(x, chosen))
    assert not y[1].any()
    assert not y[5].any()


def test_rows_of_logits_have_the_adapters_of_their_tokens(isa: str) -> None:
    x, indices = normal(8, 3, IN), [3, 1, 0]
    assert_close(run(isa, x, ADAPTERS, indices), expected(x, [ADAPTERS[token] for token in indices]))


def test_a_row_has_the_same_bits_alone_and_for_any_number_of_threads(isa: str) -> None:
    x = normal(9, len(ADAPTERS), IN)
    together = run(isa, x, ADAPTERS, threads=3)
    for row, one in enumerate(ADAPTERS):
        assert_same_bits(run(isa, x[row : row + 1], [one], threads=1)[0], together[row])


def test_nothing_is_written_in_a_step_without_adapters(isa: str) -> None:
    assert np.isnan(run(isa, normal(10, 2, IN), [])).all()


@pytest.mark.parametrize(("op", "layout"), [("Linear", "panel64"), ("GatedLinear", "gated_panel64")])
@pytest.mark.parametrize("brings_adapters", [True, False])
def test_products_add_it_before_their_activation(isa: str, op: str, layout: str, *, brings_adapters: bool) -> None:
    parts = (2,) if op == "GatedLinear" else ()
    x, weight, added = normal(11, 5, IN), normal(12, *parts, 70, IN), normal(13, 5, 70 * (len(parts) + 1))
    inputs, attributes = [x, weight, None, None, None, None, added], {"activation": "silu"}
    y = np.full((5, 70), np.nan, np.float32)
    _core.run_kernel(
        op,
        [raw(pack(weight, layout)) if array is weight else array for array in inputs],
        [y],
        attributes,
        layouts=["row_major", layout, *["row_major"] * 5],
        isa=isa,
        product_dtype=product_dtype(isa),
        adapters=[[None]] if brings_adapters else [],
    )
    read = inputs if brings_adapters else inputs[:-1]
    assert_close(y, reference(op, read, attributes)["y"])


@pytest.mark.parametrize(
    "wrong", [{"num_parts": 4}, {"max_rank": 12}, {"third_end": 9}, {"second_end": 3}, {"first_part": -1}]
)
def test_calls_whose_numbers_do_not_fit_are_refused(wrong: dict[str, int]) -> None:
    outputs = [np.zeros((1, ENDS[-1]), np.float32), np.zeros((1, 3 * MAX_RANK), np.float32)]
    with pytest.raises(EngineError, match="expected"):
        _core.run_kernel("LowRank", [normal(1, 1, IN), None], outputs, ATTRIBUTES | wrong)
