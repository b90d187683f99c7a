"""Launches that rotate a step's queries and keys and write its keys and values into the paged cache."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from ..cuda.few_rows import FewRows
from ..cuda.tiles import Tiling
from ..launch import Buffer, Extent, Launch, Operand, WeightBuffers, kernel, launch, symbol
from .launches import Cache, Heads

_ROPE_WARPS = 8


@dataclass(frozen=True)
class HeadNorm:
    """RMS norms of query, key and value heads, float32 [head_dim] each; the first two before RoPE or ``after_rope``.

    There is none of keys and values that are not stored.
    """

    query: Buffer | None
    key: Buffer | None
    value: Buffer | None
    epsilon: float
    after_rope: bool = False

    def defines(self) -> dict[str, int]:
        """Macros of paged_attention/rope_cache.cuh."""
        form = 0 if self.query is None else 2 if self.after_rope else 1
        return {"TL_NORM": form, "TL_VALUE_NORM": int(self.value is not None)}

    @property
    def arguments(self) -> tuple[Buffer | float | None, ...]:
        """The kernel's arguments."""
        return self.query, self.key, self.value, self.epsilon


NO_NORM = HeadNorm(None, None, None, 0.0)


def rotates_in_products(rotary_dim: int) -> bool:
    """Whether each thread of a product's epilogue can have both elements of the pairs that RoPE rotates.

    Kernels for a few rows and for many take eight neighbours and the elements with which they are rotated.
    """
    return rotary_dim % 16 == 0


@dataclass(frozen=True)
class NewTokens:
    """The heads of a step's tokens: queries go to ``query``, keys and values into ``cache``.

    RoPE rotates them by ``tables`` (cosines, sines); either both are given or neither.
    """

    query: Buffer
    cache: Cache
    tables: tuple[Buffer | None, Buffer | None]
    heads: Heads

    @property
    def chunk(self) -> int:
        """The ``chunk`` of the :class:`Tiling` that :meth:`tiled` takes."""
        return gcd(self.heads.head_dim, self.heads.rotary_dim)

    def few_rows(
        self,
        x: Operand,
        weight: WeightBuffers,
        rows: Extent,
        how: FewRows,
        *,
        norm: tuple[Buffer, float] | None = None,
        bias: Buffer | None = None,
    ) -> Launch:
        """Launch for a few rows: the product [rms_norm](x) @ weight.T [+ bias], with the rest in its epilogue."""
        defines = self.heads.rope_defines() | {"TL_NORM": int(norm is not None), "TL_BIAS": int(bias is not None)}
        specialised = how.kernel("paged_attention/qkv.cuh", "qkv_linear", weight, defines)
        norm_weight, epsilon = norm or (None, 0.0)
        operands = (x, weight.values, *weight.numbers, norm_weight, bias, *self.tables, self.cache.token_slots)
        numbers = (rows, epsilon, how.x_scale, *self.cache.factors)
        return launch(specialised, how.grid(weight), *self._targets, *operands, *numbers)

    def tiled(
        self, x: Operand, weight: WeightBuffers, rows: Extent, how: Tiling, *, bias: Buffer | None = None
    ) -> Launch:
        """Like :meth:`few_rows`, for many rows and without a norm; ``how`` must have this ``chunk``."""
        defines = self.heads.rope_defines() | {"TL_BIAS": int(bias is not None)}
        maps, targets = how.maps(x, weight), self._targets
        more = (bias, *self.tables, self.cache.token_slots)
        if how.config.swap_ab:
            specialised = how.kernel("paged_attention/qkv_swap_ab.cuh", "qkv_linear_swap_ab", weight, defines)
            numbers = (rows, *self.cache.factors)
            return launch(specialised, how.grid(weight), *maps, *targets, *weight.numbers, *more, *numbers)
        specialised = how.kernel("paged_attention/qkv_tiled.cuh", "qkv_linear_tiled", weight, defines)
        operands = (*weight.numbers, how.row_scales, *more, how.x_scale, rows, *self.cache.factors)
        return launch(specialised, how.grid(weight), *maps, *targets, *operands)

    def computed(
        self, qkv: Operand, norm: HeadNorm = NO_NORM, stored: Buffer | None = None, appends: bool = True
    ) -> Launch:
        """Launch for any number of rows ``qkv``: optional head norms, RoPE and the write to the cache.

        If ``stored`` is given, keys and values are stored there too. Unless the layer ``appends`` to the cache, rows
        have queries alone.
        """
        defines = self.heads.rope_defines() | norm.defines() | {"TL_WARPS": _ROPE_WARPS, "TL_APPENDS": int(appends)}
        defines["TL_STORED"] = int(stored is not None)
        specialised = kernel("paged_attention/rope_cache.cuh", "rope_cache", 32 * _ROPE_WARPS, 0, defines)
        arguments = (qkv, *self.tables, self.cache.token_slots, *norm.arguments, *self.cache.factors)
        return launch(specialised, (symbol("num_tokens"),), *self._targets, stored, *arguments)

    @property
    def _targets(self) -> tuple[Operand, ...]:
        return self.query, self.cache.keys, self.cache.values
