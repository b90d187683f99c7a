"""LatentAttention: values, NaN in unused cache slots, and independence of rows."""

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest

from tests.plugins.harness import WEIGHT_DTYPES, assert_close, assert_same_bits, reference, run
from tests.plugins.paged_batch import AttentionShape, PagedCache
from tests.plugins.test_bounds import run_guarded
from tests.plugins.test_paged_attention import ROUNDING

HEADS, PLAIN, VALUE = 3, 10, 14
SIZES = [(20, 8), (64, 16), (512, 64)]  # latent_dim, rotary_dim
STEPS = [[(0, 7), (1, 40), (2, 1)], [(0, 1), (2, 1)], [(2, 33), (1, 2), (0, 5)]]
LENGTHS = [13, 42, 35]
ATTRIBUTES = {"scale": 0.3, "cache_group": 1, "norm_epsilon": 1e-6}


class _Tokens:
    """The rows, weights and caches of three sequences; blocks of 16 tokens, and two tables for each sequence."""

    def __init__(self, latent_dim: int, rotary_dim: int, dtype: type = np.float32, cache: type = np.float32) -> None:
        rng = np.random.default_rng([latent_dim, rotary_dim])
        self.pages = PagedCache(AttentionShape(tokens_per_block=16, num_groups=2, cache_group=1), num_blocks=12)
        self.caches = [np.full((13, 1, 16, dim), np.nan, cache) for dim in (rotary_dim, latent_dim)]
        widths = (HEADS * (PLAIN + rotary_dim), latent_dim + rotary_dim)
        self.rows = [[rng.standard_normal((length, width), np.float32) for width in widths] for length in LENGTHS]
        angles = np.arange(max(LENGTHS))[:, None] * 100.0 ** -np.linspace(0, 1, rotary_dim // 2)
        self.tables = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self.norm = rng.uniform(0.5, 1.5, latent_dim).astype(np.float32)
        shapes = [(HEADS, size, latent_dim) for size in (PLAIN, VALUE)]
        self.weights = [(rng.standard_normal(shape) / latent_dim**0.5).astype(dtype) for shape in shapes]

    def inputs(self, new_tokens: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        starts = [self.pages.lengths.get(sequence, 0) for sequence, _ in new_tokens]
        spans = [(s, slice(start, start + n)) for (s, n), start in zip(new_tokens, starts, strict=True)]
        query, latent = (np.concatenate([self.rows[s][kind][span] for s, span in spans]) for kind in range(2))
        cos, sin = (np.concatenate([table[span] for _, span in spans]) for table in self.tables)
        return [query, latent, self.norm, cos, sin, *self.weights, *self.caches, *self.pages.step_inputs(new_tokens)]

    def step(self, new_tokens: Sequence[tuple[int, int]], isa: str, num_threads: int = 2) -> dict[str, np.ndarray]:
        made = run("LatentAttention", self.inputs(new_tokens), ATTRIBUTES, isa=isa, num_threads=num_threads)
        self.caches = [made["rotary_cache_out"], made["latent_cache_out"]]
        for sequence, count in new_tokens:
            self.pages.lengths[sequence] = self.pages.lengths.get(sequence, 0) + count
        return made


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize(("latent_dim", "rotary_dim"), SIZES)
def test_matches_the_reference(isa: str, latent_dim: int, rotary_dim: int, dtype: str) -> None:
    tokens = _Tokens(latent_dim, rotary_dim, WEIGHT_DTYPES[dtype])
    for new_tokens in STEPS:
        expected = reference("LatentAttention", tokens.inputs(new_tokens), ATTRIBUTES)
        made = tokens.step(new_tokens, isa)
        assert_close(made["y"], expected["y"])
        for name in ("rotary_cache_out", "latent_cache_out"):
            is_stored = np.isfinite(expected[name])
            np.testing.assert_array_equal(np.isfinite(made[name]), is_stored)
            assert_close(made[name][is_stored], expected[name][is_stored])


@pytest.mark.parametrize("cache", [np.float16, ml_dtypes.bfloat16])
def test_caches_may_be_of_16_bits(isa: str, cache: type) -> None:
    """Values halfway between two numbers may be rounded differently from the reference, which has more digits."""
    tokens = _Tokens(64, 16, cache=cache)
    for new_tokens in STEPS:
        expected = reference("LatentAttention", tokens.inputs(new_tokens), ATTRIBUTES)
        y = tokens.step(new_tokens, isa)["y"]
        np.testing.assert_allclose(y, expected["y"], atol=2 * ROUNDING[np.dtype(cache).name])


def test_a_row_does_not_depend_on_batch_chunks_or_threads(isa: str) -> None:
    whole, parts = _Tokens(64, 16), _Tokens(64, 16)
    expected = whole.step([(0, 13), (1, 42), (2, 35)], isa, num_threads=1)["y"]
    found: dict[int, list[np.ndarray]] = {0: [], 1: [], 2: []}
    for new_tokens in STEPS:
        rows = np.split(parts.step(new_tokens, isa, num_threads=3)["y"], np.cumsum([n for _, n in new_tokens])[:-1])
        for (sequence, _), part in zip(new_tokens, rows, strict=True):
            found[sequence].append(part)
    assert_same_bits(np.concatenate([row for sequence in range(3) for row in found[sequence]]), expected)


def test_a_row_of_nan_stays_in_its_sequence(isa: str) -> None:
    clean, dirty = _Tokens(20, 8), _Tokens(20, 8)
    dirty.rows[1][1][3] = np.nan
    expected, made = (tokens.step(STEPS[0], isa)["y"] for tokens in (clean, dirty))
    assert np.isnan(made[10:47]).all()
    others = [*range(10), 47]
    assert_same_bits(made[others], expected[others])


def test_nothing_is_touched_behind_operands(isa: str) -> None:
    run_guarded("LatentAttention", _Tokens(20, 8).inputs([(0, 3), (1, 17)]), ATTRIBUTES, "row_major", isa)
