"""The rows of a source module that a weight consists of, compared with the weights themselves."""

import numpy as np
import pytest

from trtllm_lite.errors import EngineError
from trtllm_lite.network.module_rows import ModuleRows
from trtllm_lite.network.source_rows import rows_of
from trtllm_lite.network.weight_expression import Concat, HalvesFromPairs, PaddedHeads, SourceTensor, WeightExpression

fused = SourceTensor("layers.0.qkv.weight", (36, 5))
swapped = SourceTensor("layers.0.c_attn.weight", (5, 36))
other = SourceTensor("layers.0.other.weight", (36, 5))
plain, rotated = fused.split_heads(3, 8, 4)

CASES: dict[str, WeightExpression] = {
    "whole": fused,
    "second part": fused.split(12, 24)[1],
    "keys of heads": fused.split_heads(3, 4, 4, 4)[1],
    "every second row": fused.split_heads(18, 1, 1)[1],
    "halves from pairs": HalvesFromPairs(fused, 3),
    "halves from pairs of a part": HalvesFromPairs(fused, 3, 6),
    "halves from pairs of the heads' keys": HalvesFromPairs(fused.split_heads(3, 4, 8)[1], 3),
    "latent queries": Concat((plain, HalvesFromPairs(rotated, 3))),
    "swapped": swapped.transpose(),
    "part of swapped": swapped.transpose().split(12, 24)[1],
    "one row": fused.slice(7, 8),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_of_the_weight(case: str) -> None:
    weight, module = CASES[case], np.random.default_rng(0).random((36, 5))
    rows = rows_of(weight)
    assert rows is not None
    assert f"{rows.module}.weight" == next(weight.sources()).name
    expected = weight.evaluate(lambda name: module.T if name == swapped.name else module)
    np.testing.assert_array_equal(module[rows.numbers()], expected)
    assert rows.num_rows == len(expected)


def test_heads_are_said_once() -> None:
    rows = rows_of(HalvesFromPairs(SourceTensor("q.weight", (4096, 2)), 32, 64))
    assert rows == ModuleRows("q", ((0, 32, 2), (1, 32, 2), (64, 64, 1)), repeats=32, period=128)


@pytest.mark.parametrize(
    "weight",
    [
        fused.slice(0, 2, axis=1),
        fused.affine(2.0),
        PaddedHeads(fused, 3, 20),
        Concat((fused, other)),
        swapped.split(2, 3, axis=0)[0].transpose(),
        SourceTensor("experts", (2, 3, 4)),
    ],
)
def test_what_is_no_rows_of_one_module_has_none(weight: WeightExpression) -> None:
    assert rows_of(weight) is None


@pytest.mark.parametrize(
    "changes",
    [{"runs": ()}, {"runs": ((0, 0, 1),)}, {"repeats": -1}, {"period": 1 << 60}, {"runs": ((1 << 60, 1, 1),)}],
)
def test_numbers_that_are_none_of_rows_are_errors(changes: dict[str, object]) -> None:
    said: dict[str, object] = {"module": "q", "runs": ((0, 4, 1),), "repeats": 1, "period": 0}
    with pytest.raises(EngineError, match="expected rows of the module 'q'"):
        ModuleRows(**(said | changes))  # type: ignore[arg-type]
