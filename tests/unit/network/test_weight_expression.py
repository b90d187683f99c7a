"""Expressions over source tensors against numpy: values, shapes (found without reading data), and the bytes read."""

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from trtllm_lite.convert.sources.safetensors_file import SafetensorsFile
from trtllm_lite.network.several_matrices import ColumnsOfMatrices, RowsOfMatrices
from trtllm_lite.network.weight_expression import (
    Concat,
    HalvesFromPairs,
    MovedRows,
    PaddedHeads,
    Row,
    SourceTensor,
    WeightExpression,
    halves_from_pairs,
)

_A = np.arange(24, dtype=np.float32).reshape(6, 4)
_B = -np.arange(8, dtype=np.float32).reshape(2, 4)
_EXPERTS = _A.reshape(2, 3, 4)
_SOURCES = {"a": _A, "b": _B, "experts": _EXPERTS, "half": np.array([0.5, 256], ml_dtypes.bfloat16)}
a, b, experts, half = (SourceTensor(name, array.shape) for name, array in _SOURCES.items())

CASES: dict[str, tuple[WeightExpression, Callable[[], NDArray]]] = {
    "source": (a, lambda: _A),
    "rows": (a.slice(1, 4), lambda: _A[1:4]),
    "columns": (a.slice(1, 3, axis=1), lambda: _A[:, 1:3]),
    "last part": (a.split(1, 3, 2)[2], lambda: _A[4:]),
    "transposed column part": (a.split(3, 1, axis=1)[1].transpose(), lambda: _A[:, 3:].T),
    "affine": (a.affine(2, 1), lambda: 2 * _A + 1),
    "affine of bfloat16 is exact": (half.affine(offset=1), lambda: np.array([1.5, 257], np.float32)),
    "rows joined": (Concat((a, b)), lambda: np.concatenate([_A, _B])),
    "columns joined": (Concat((b, b), axis=1), lambda: np.concatenate([_B, _B], 1)),
    "many rows joined": (Concat((a.slice(0, 2), b, a.slice(2, 5))), lambda: np.vstack([_A[:2], _B, _A[2:5]])),
    "rows of experts": (RowsOfMatrices(experts), lambda: _EXPERTS.reshape(6, 4)),
    "rows of a part of experts": (RowsOfMatrices(experts.slice(1, 3, 1)), lambda: _EXPERTS[:, 1:3].reshape(4, 4)),
    "columns of experts": (ColumnsOfMatrices(experts), lambda: np.vstack([_EXPERTS[0].T, _EXPERTS[1].T])),
    "every other column": (
        ColumnsOfMatrices(experts).split_heads(4, 1, 1)[1],
        lambda: _A.reshape(2, 3, 4)[..., 1::2].swapaxes(1, 2).reshape(4, 3),
    ),
    "biases of experts": (RowsOfMatrices(b).split_heads(4, 1, 1)[0], lambda: _B.reshape(-1)[::2]),
    "rows of heads": (a.split_heads(2, 1, 2)[1], lambda: _A[[1, 2, 4, 5]]),
    "moved rows": (MovedRows((a, Row(b, 0), Row(b, 1))), lambda: _A + (_B[0] - _B[1])),
    "halves from pairs of a part": (HalvesFromPairs(a, 1, 4), lambda: _A[[0, 2, 1, 3, 4, 5]]),
    "padded heads": (PaddedHeads(a, 3, 3), lambda: np.insert(_A, [2, 4, 6], 0, axis=0)),
    "halves from pairs": (HalvesFromPairs(a, 1), lambda: _A[[0, 2, 4, 1, 3, 5]]),
}


@pytest.mark.parametrize("case", CASES)
def test_equal_to_numpy(case: str) -> None:
    expression, expected = CASES[case]
    result = expression.evaluate(_SOURCES.__getitem__)
    np.testing.assert_array_equal(result, expected())
    assert expression.shape == result.shape


def test_equal_expressions_are_one_weight() -> None:
    assert a.affine(offset=1) == SourceTensor("a", (6, 4)).affine(offset=1)
    assert len({a.slice(0, 2), a.slice(0, 2), a.slice(0, 3)}) == 2


def test_sources_are_known_without_reading() -> None:
    assert list(Concat((a.split(2, 4)[0].affine(2), b)).sources()) == [a, b]


def test_a_part_of_a_mapped_tensor_is_a_view(tmp_path: Path) -> None:
    """Only the part's pages are read from disk, and memory holds none of the rest."""
    save_file({"fused": _A}, tmp_path / "m.safetensors")
    file = SafetensorsFile(tmp_path / "m.safetensors")
    whole = file.read("fused")
    for part in SourceTensor("fused", (6, 4)).split(2, 3, 1):
        assert np.shares_memory(part.evaluate(file.read), whole)
        assert np.shares_memory(part.transpose().evaluate(file.read), whole)


def test_pairs_become_halves_in_every_head() -> None:
    """Rotating pairs of neighbours, then reordering, equals reordering, then rotating halves."""
    angles, x = np.array([0.3, 1.1, 2.0]), np.random.default_rng(0).standard_normal((2, 6))
    cos, sin = np.cos(angles), np.sin(angles)
    even, odd = x[:, ::2], x[:, 1::2]
    neighbours = np.stack([even * cos - odd * sin, odd * cos + even * sin], -1).reshape(2, 6)
    first, second = np.split(halves_from_pairs(x.reshape(-1), 2).reshape(2, 6), 2, axis=1)
    halves = np.concatenate([first * cos - second * sin, second * cos + first * sin], 1)
    np.testing.assert_allclose(halves, halves_from_pairs(neighbours.reshape(-1), 2).reshape(2, 6))
