"""Quantizes the products and the KV cache of a network: chooses the scheme of each product, and applies it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial

import numpy as np
import onnx_ir as ir

from trtllm_lite.common.vocabulary import AUTO, KV_CACHE_DTYPES, PLAIN_DTYPES
from trtllm_lite.errors import BuildError, shown
from trtllm_lite.network.graph import QFORMAT
from trtllm_lite.quantize.calibration.observed import Observed
from trtllm_lite.quantize.calibration.statistics import Statistics
from trtllm_lite.quantize.kv_cache import (
    CachedAttention,
    calibrated_scales,
    find_attentions,
    keys_and_values,
    kv_cache_dtype_of,
    round_kv_cache,
)
from trtllm_lite.quantize.products import CLASSIFIER, LM_HEAD, Product, by_input, find_products, merged, observed_input
from trtllm_lite.quantize.schemes import FULL_PRECISION, SCHEMES, Needs, Scheme
from trtllm_lite.quantize.schemes.folding import value_factors
from trtllm_lite.quantize.schemes.workpiece import Decision, Workpiece

GROUP_SIZE = 128
_LEAST_SCALE, _MOST_SCALE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Recipe:
    """``qformat`` is the scheme of all products; those whose path matches the pattern of an override get another.

    If several patterns match, the last counts. The LM head stays unquantized, because its errors hurt most, unless
    ``quantize_lm_head`` or an override says otherwise, and so does the last product of a classifier, unless an override
    says otherwise. Embeddings, which are looked up and not multiplied, and routers stay unquantized. In experts all
    schemes quantize only the weights. ``group_size`` neighbouring weights of a row share a scale in 4-bit schemes.

    With a ``kv_cache_dtype`` (fp8 or int8) keys and values are quantized, with ``kv_cache_scale`` for all layers if it
    is given, else with a scale per layer that calibration finds. With a ``key_cache_dtype`` other than ``auto``, which
    is a plain type, only values are quantized.
    """

    qformat: str = FULL_PRECISION
    quantize_lm_head: bool = False
    overrides: tuple[tuple[str, str], ...] = ()
    group_size: int = GROUP_SIZE
    kv_cache_dtype: str | None = None
    kv_cache_scale: float | None = None
    key_cache_dtype: str = AUTO

    def __post_init__(self) -> None:
        for name in (self.qformat, *(qformat for _, qformat in self.overrides)):
            if name != FULL_PRECISION and name not in SCHEMES:
                raise BuildError(f"qformat is {shown(name)}: expected one of {', '.join((FULL_PRECISION, *SCHEMES))}")
        if self.kv_cache_dtype is not None and self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise BuildError(
                f"kv_cache_dtype is {shown(self.kv_cache_dtype)}: expected {' or '.join(KV_CACHE_DTYPES)} where keys "
                "and values are quantized"
            )
        _check_key_type(self.key_cache_dtype, self.kv_cache_dtype)
        _check_scale(self.kv_cache_scale, self.kv_cache_dtype)

    @property
    def rounds_keys(self) -> bool:
        """Whether keys are quantized where values are."""
        return self.key_cache_dtype == AUTO

    @property
    def of_products(self) -> "Recipe":
        """This recipe without the quantization of keys and values."""
        return replace(self, kv_cache_dtype=None, kv_cache_scale=None, key_cache_dtype=AUTO)

    @property
    def changes_products(self) -> bool:
        """Whether any product is quantized."""
        return self.qformat != FULL_PRECISION or bool(self.overrides)

    @property
    def schemes(self) -> list[Scheme]:
        """The schemes that the recipe names."""
        names = dict.fromkeys([self.qformat, *(qformat for _, qformat in self.overrides)])
        return [SCHEMES[name] for name in names if name != FULL_PRECISION]

    @property
    def needs(self) -> Needs:
        """Everything that calibration may have to gather for this recipe, whatever the network."""
        calibrates_cache = self.kv_cache_dtype is not None and self.kv_cache_scale is None
        cache = Needs.CHANNELS if calibrates_cache else Needs.NOTHING
        return max([cache, *(scheme.needs for scheme in self.schemes)])

    @property
    def changes_nothing(self) -> bool:
        """Whether products and caches stay unquantized."""
        return not self.changes_products and self.kv_cache_dtype is None

    def only(self, names: Sequence[str]) -> "Recipe":
        """The recipe that quantizes the products ``names`` as this one does, and nothing else."""
        own = ((name, self._qformat_of(name)) for name in names)
        overrides = (("*", FULL_PRECISION), *own)
        return replace(self.of_products, overrides=overrides)

    def keeping(self, names: Sequence[str]) -> "Recipe":
        """This recipe with exceptions: the products ``names`` stay in full precision."""
        return replace(self, overrides=(*self.overrides, *((name, FULL_PRECISION) for name in names)))

    def describe(self) -> str:
        """Describe the scheme, the overriding schemes, and the KV cache's type."""
        name = "kv_cache" if self.rounds_keys else "value_cache"
        cache = [] if self.kv_cache_dtype is None else [f"{name}_{self.kv_cache_dtype}"]
        return ",".join([self.qformats, *cache])

    @property
    def qformats(self) -> str:
        """The names of the scheme and of the overriding schemes."""
        return ",".join(dict.fromkeys([self.qformat, *(qformat for _, qformat in self.overrides)]))

    def attentions(self, graph: ir.Graph) -> list[CachedAttention]:
        """The attentions whose keys and values are to be quantized; none if they are quantized in this way already."""
        asked = self.kv_cache_dtype is not None
        found = kv_cache_dtype_of(graph, of_values=not self.rounds_keys)
        is_done = self.kv_cache_scale is None and self.kv_cache_dtype == found
        return find_attentions(graph) if asked and not is_done else []

    def choose(self, products: list[Product]) -> dict[Product, Scheme]:
        """The scheme of each product that gets one.

        Raises BuildError if a pattern matches nothing, or products that an engine merges get different schemes.
        """
        names = {product: self._qformat_of(product.name) for product in products}
        for pattern, _ in self.overrides:
            if not any(fnmatchcase(product.name, pattern) for product in products):
                raise BuildError(
                    f"no product of the network matches {shown(pattern)}: expected a pattern such as "
                    f"{shown(products[0].name if products else LM_HEAD)} or 'layers.0.*'"
                )
        _check_merged(products, names)
        chosen = {product: SCHEMES[name] for product, name in names.items() if name != FULL_PRECISION}
        if not chosen:
            raise BuildError(
                f"qformat is {self.describe()}, and every product is to stay {FULL_PRECISION}: let some have another "
                "qformat"
            )
        return chosen

    def _qformat_of(self, path: str) -> str:
        stays = path == CLASSIFIER or (path == LM_HEAD and not self.quantize_lm_head)
        usual = FULL_PRECISION if stays else self.qformat
        return next((qformat for pattern, qformat in reversed(self.overrides) if fnmatchcase(path, pattern)), usual)


def _check_key_type(key_cache_dtype: str, kv_cache_dtype: str | None) -> None:
    if key_cache_dtype not in (AUTO, *PLAIN_DTYPES):
        raise BuildError(
            f"key_cache_dtype is {shown(key_cache_dtype)}: expected {AUTO}, for the type of values, or one of "
            f"{', '.join(PLAIN_DTYPES)}, in which keys stay as they are"
        )
    if key_cache_dtype != AUTO and kv_cache_dtype is None:
        raise BuildError(
            f"key_cache_dtype is {key_cache_dtype}, and values are not rounded: pass kv_cache_dtype "
            f"{' or '.join(KV_CACHE_DTYPES)} for values, or leave key_cache_dtype out"
        )


def _check_scale(scale: float | None, kv_cache_dtype: str | None) -> None:
    if scale is None:
        return
    if kv_cache_dtype is None:
        raise BuildError(
            f"kv_cache_scale is {scale:g}, and keys and values are not rounded: pass kv_cache_dtype "
            f"{' or '.join(KV_CACHE_DTYPES)}, or leave kv_cache_scale out"
        )
    if not _LEAST_SCALE <= scale <= _MOST_SCALE:
        raise BuildError(
            f"kv_cache_scale is {scale:g}: expected a number above 0 that float32 holds, from {_LEAST_SCALE:g} to "
            f"{_MOST_SCALE:g}"
        )


def _check_merged(products: list[Product], names: dict[Product, str]) -> None:
    """Raise BuildError if products that an engine merges (one input, one block) get different schemes."""
    for first, *others in merged(products):
        for product in others:
            if names[product] != names[first]:
                raise BuildError(
                    f"{first.name} is to be {names[first]} and {product.name} {names[product]}: an engine computes "
                    "both at once, so let one pattern cover both"
                )


def quantized_as(network: ir.Model) -> str:
    """The qformat that the network was quantized with earlier, or ``full_prec``."""
    return network.metadata_props.get(QFORMAT, FULL_PRECISION)


def _check_fresh(network: ir.Model, recipe: Recipe) -> None:
    if recipe.changes_products and quantized_as(network) != FULL_PRECISION:
        raise BuildError(
            f"the checkpoint is quantized as {quantized_as(network)} already, and {recipe.describe()} is asked for: "
            "leave qformat out, or pass a checkpoint that is not quantized (of a quantized model "
            "`trtllm-lite convert --dequantize` makes one)"
        )


def inputs_to_observe(network: ir.Model, recipe: Recipe) -> tuple[dict[str, Observed], Needs]:
    """The inputs that calibration observes for ``recipe``, and the statistics it gathers. Raises BuildError."""
    _check_fresh(network, recipe)
    needs, observed = Needs.NOTHING, dict[str, Observed]()
    if recipe.changes_products:
        products = find_products(network.graph)
        chosen = recipe.choose(products).items()
        schemes = {product: scheme for product, scheme in chosen if scheme.needs > needs and not product.of_experts}
        needs = max((scheme.needs for scheme in schemes.values()), default=needs)
        inputs = by_input(products)
        observed |= {name: observed_input(group) for name, group in inputs.items() if schemes.keys() & set(group)}
    attentions = [] if recipe.kv_cache_scale is not None else recipe.attentions(network.graph)
    return observed | keys_and_values(attentions), max(needs, Needs.CHANNELS) if attentions else needs


def no_calibration(name: str) -> Statistics:
    """The source of statistics if there was no calibration. Raises BuildError."""
    raise BuildError(
        f"{name} is to be quantized in a way that needs calibration: quantize the checkpoint with `trtllm-lite "
        "quantize`, and build what it writes"
    )


def quantize_network(
    network: ir.Model, recipe: Recipe, statistics: Callable[[str], Statistics] = no_calibration
) -> tuple[ir.Model, list[Decision]]:
    """Quantize ``network`` by ``recipe``, and report the decisions of schemes; ``network`` itself is left unchanged.

    ``statistics`` is called with the names of :func:`inputs_to_observe`, even later, when weights are evaluated. Raises
    BuildError if there is nothing to quantize, or if the network is quantized already.
    """
    if recipe.changes_nothing:
        return network, []
    _check_fresh(network, recipe)
    quantized = network.clone()
    work = Workpiece(quantized.graph, statistics, recipe.group_size)
    if recipe.changes_products:
        _quantize_products(work, recipe)
        quantized.metadata_props[QFORMAT] = recipe.qformats
    _round_kv_cache(work, recipe, statistics)
    return quantized, work.decisions


def _quantize_products(work: Workpiece, recipe: Recipe) -> None:
    schemes = recipe.choose(work.products)
    for scheme in dict.fromkeys(schemes.values()):
        own = [product for product, chosen in schemes.items() if chosen is scheme]
        like_experts = [product for product in own if is_stored_like_experts(product, scheme)]
        scheme.quantize(work, [product for product in own if product not in like_experts])
        scheme.quantize_experts(work, like_experts)
    work.finish()


def is_stored_like_experts(product: Product, scheme: Scheme) -> bool:
    """Whether ``scheme`` stores ``product`` like products of experts, which multiply activations as they are.

    Experts that all rows share are stored so, if calibration makes their weights no better: engines then compute them
    with the others, in fewer launches.
    """
    return product.of_experts or (product.of_shared and scheme.needs == Needs.NOTHING)


def _round_kv_cache(work: Workpiece, recipe: Recipe, statistics: Callable[[str], Statistics]) -> None:
    if recipe.kv_cache_dtype is None:
        return
    to, fixed = KV_CACHE_DTYPES[recipe.kv_cache_dtype], recipe.kv_cache_scale

    def scales(attention: CachedAttention) -> tuple[float | None, float]:
        if fixed is not None:
            return fixed if recipe.rounds_keys else None, fixed
        found, (_, values) = statistics(attention.name), attention.appended
        factors = partial(value_factors, work, values)
        return calibrated_scales(attention, to, found, factors, of_keys=recipe.rounds_keys)

    round_kv_cache(work.graph, recipe.attentions(work.graph), to, scales)
