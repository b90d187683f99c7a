"""Quantizes the products of a network: which scheme each gets, and the network that results."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx_ir as ir

from trtllm_lite.errors import BuildError, shown
from trtllm_lite.network.graph import QFORMAT
from trtllm_lite.quantize.calibration.statistics import Statistics
from trtllm_lite.quantize.products import LM_HEAD, Product, by_input, find_products
from trtllm_lite.quantize.schemes import FULL_PRECISION, SCHEMES, Needs, Scheme
from trtllm_lite.quantize.schemes.workpiece import Decision, Workpiece

GROUP_SIZE = 128


@dataclass(frozen=True)
class Recipe:
    """``qformat`` is the scheme of all products; those whose path matches the pattern of an override get another.

    Of several patterns that match, the last counts. The LM head stays as it is unless ``quantize_lm_head``, or an
    override, says otherwise: its small errors hurt most. Embeddings are looked up, not multiplied, and stay.
    ``group_size`` neighbouring weights of a row share a scale in schemes of 4 bits.
    """

    qformat: str = FULL_PRECISION
    quantize_lm_head: bool = False
    overrides: tuple[tuple[str, str], ...] = ()
    group_size: int = GROUP_SIZE

    def __post_init__(self) -> None:
        for name in (self.qformat, *(qformat for _, qformat in self.overrides)):
            if name != FULL_PRECISION and name not in SCHEMES:
                raise BuildError(f"qformat is {shown(name)}: expected one of {', '.join((FULL_PRECISION, *SCHEMES))}")

    @property
    def changes_nothing(self) -> bool:
        """Whether every product stays as it is."""
        return self.qformat == FULL_PRECISION and not self.overrides

    def describe(self) -> str:
        """The scheme, and the others that some products get."""
        return ",".join(dict.fromkeys([self.qformat, *(qformat for _, qformat in self.overrides)]))

    def choose(self, products: list[Product], within: str = "") -> dict[Product, Scheme]:
        """The scheme of each product that gets one; only of those below the path ``within``, if that is given.

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
        chosen = {
            product: SCHEMES[name]
            for product, name in names.items()
            if name != FULL_PRECISION and f"{product.name}.".startswith(f"{within}." if within else "")
        }
        if not chosen:
            raise BuildError(f"qformat is {self.describe()}, and the network has no floating-point weight to quantize")
        return chosen

    def _qformat_of(self, path: str) -> str:
        usual = FULL_PRECISION if path == LM_HEAD and not self.quantize_lm_head else self.qformat
        return next((qformat for pattern, qformat in reversed(self.overrides) if fnmatchcase(path, pattern)), usual)


def _check_merged(products: list[Product], names: dict[Product, str]) -> None:
    """Products of one input in one block are one product of the engine."""
    for group in by_input(products).values():
        blocks: dict[str, Product] = {}
        for product in group:
            first = blocks.setdefault(product.name.rpartition(".")[0], product)
            if names[product] != names[first]:
                raise BuildError(
                    f"{first.name} is to be {names[first]} and {product.name} {names[product]}: an engine computes "
                    "both at once, so let one pattern cover both"
                )


def quantized_as(network: ir.Model) -> str:
    """The qformat that the network was quantized with before, or ``full_prec``."""
    return network.metadata_props.get(QFORMAT, FULL_PRECISION)


def _check_fresh(network: ir.Model, recipe: Recipe) -> None:
    if quantized_as(network) != FULL_PRECISION:
        raise BuildError(
            f"the checkpoint is quantized as {quantized_as(network)} already, and {recipe.describe()} is asked for: "
            "leave qformat out, or pass a checkpoint that is not quantized (of a quantized model "
            "`trtllm-lite convert --dequantize` makes one)"
        )


def inputs_to_observe(network: ir.Model, recipe: Recipe) -> tuple[dict[str, list[Product]], Needs]:
    """The inputs of products whose schemes need calibration, and what they need. Raises BuildError."""
    if recipe.changes_nothing:
        return {}, Needs.NOTHING
    _check_fresh(network, recipe)
    products = find_products(network.graph)
    schemes = {product: scheme for product, scheme in recipe.choose(products).items() if scheme.needs > Needs.NOTHING}
    needs = max((scheme.needs for scheme in schemes.values()), default=Needs.NOTHING)
    inputs = {name: group for name, group in by_input(products).items() if any(member in schemes for member in group)}
    return inputs, needs


def no_calibration(name: str) -> Statistics:
    """Where there are no statistics. Raises BuildError."""
    raise BuildError(
        f"{name} has a scheme that needs calibration: quantize the checkpoint with `trtllm-lite quantize`, and build "
        "what it writes"
    )


def quantize_network(
    network: ir.Model, recipe: Recipe, statistics: Callable[[str], Statistics] = no_calibration, within: str = ""
) -> tuple[ir.Model, list[Decision]]:
    """``network`` as ``recipe`` says, and what schemes decided; ``network`` itself stays as it is.

    Only products below the path ``within`` are quantized, if that is given. ``statistics`` are asked for by the names
    of :func:`inputs_to_observe`, also when weights are evaluated. Raises BuildError if there is nothing to quantize, or
    if the network is quantized already.
    """
    if recipe.changes_nothing:
        return network, []
    _check_fresh(network, recipe)
    quantized = network.clone()
    work = Workpiece(quantized.graph, statistics, recipe.group_size)
    schemes = recipe.choose(work.products, within)
    for scheme in dict.fromkeys(schemes.values()):
        scheme.quantize(work, [product for product, chosen in schemes.items() if chosen is scheme])
    work.finish()
    quantized.metadata_props[QFORMAT] = recipe.describe()
    return quantized, work.decisions
