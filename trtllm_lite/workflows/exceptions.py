"""Keeps the products that quantization hurts most in full precision: as few as a limit of accuracy asks for."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtllm_lite.common.progress import Report
from trtllm_lite.common.scratch import scratch_directory
from trtllm_lite.engine.manifest import Accuracy
from trtllm_lite.errors import BuildError
from trtllm_lite.network.tensors import stored_bits
from trtllm_lite.quantize.products import find_products, merged
from trtllm_lite.workflows.accuracy import Compared, measure_accuracy
from trtllm_lite.workflows.quantize import Quantization, written

# The largest share of the quantized matrices' elements that is kept. With more exceptions, another scheme is smaller.
_MOST_KEPT = 0.25
_MAX_NAMED = 5


@dataclass(frozen=True)
class Site:
    """Products that an engine computes at once.

    ``divergence`` is the KL divergence, in nats per token, of the network in which only they are quantized.
    """

    names: tuple[str, ...]
    num_elements: int
    divergence: float

    def __str__(self) -> str:
        return f"{self.names[0]}{', …' if len(self.names) > 1 else ''} ({self.divergence:.5f})"


@dataclass(frozen=True)
class Kept:
    """The ``sites`` that stay in full precision, the share of the elements that the recipe quantizes, and their cost.

    ``more_bytes`` is what each step reads more.
    """

    sites: tuple[Site, ...]
    share: float
    more_bytes: int


@contextmanager
def within_limit(
    quantization: Quantization, limit: float, report: Report
) -> Iterator[tuple[Quantization, Accuracy, Kept | None]]:
    """The quantization with as few exceptions as keep the rise of perplexity within ``limit`` percent.

    If there must be exceptions, each site is quantized alone, and one window of the text is read. Sites are kept in
    the order of their divergence for each element. Raises BuildError if a quarter of the elements is not enough, or if
    only the KV cache is quantized.
    """
    with written(quantization, report) as first:
        accuracy = measure_accuracy(first, report)
        if _loss(accuracy) <= limit:
            yield first, accuracy, None
            return
        before = stored_bits(first.checkpoint.model)
    kept = _fewest(quantization, accuracy, limit, report)
    names = [name for site in kept for name in site.names]
    with written(quantization.keeping(names), report) as result:
        share = sum(site.num_elements for site in kept) / _num_quantized(quantization)
        more_bytes = (stored_bits(result.checkpoint.model) - before) // 8
        yield result, measure_accuracy(result, report), Kept(tuple(kept), share, more_bytes)


def _loss(accuracy: Accuracy) -> float:
    """The rise of perplexity, in percent."""
    return 100 * (accuracy.perplexity / accuracy.reference_perplexity - 1)


def _fewest(quantization: Quantization, accuracy: Accuracy, limit: float, report: Report) -> list[Site]:
    """The shortest list of sites with which perplexity rises by no more than ``limit`` percent."""
    failed = (
        f"perplexity rises by {_loss(accuracy):.2f}%, from {accuracy.reference_perplexity:.4f} to "
        f"{accuracy.perplexity:.4f} over {accuracy.num_tokens:,} tokens, and max_accuracy_loss is {limit:g}%"
    )
    if not quantization.recipe.changes_products:
        raise BuildError(
            f"{failed}. Only keys and values are quantized: choose another kv_cache_dtype, or raise the limit"
        )
    with scratch_directory("exceptions") as directory:
        sites = _ranked(quantization, directory, report)
        hurt = ", ".join(map(str, sites[:_MAX_NAMED]))
        leading = _leading(sites, _MOST_KEPT * _num_quantized(quantization))
        compared = Compared(quantization, directory)

        def loss(count: int) -> float:
            names = [name for site in sites[:count] for name in site.names]
            perplexity = compared.perplexity(quantization.keeping(names).checkpoint, report)
            return 100 * (perplexity / accuracy.reference_perplexity - 1)

        fails, suffices = 0, len(leading)
        if not leading or (least := loss(suffices)) > limit:
            more = f" With the first {len(leading)} in full precision it rises by {least:.2f}%." if leading else ""
            raise BuildError(
                f"{failed}. What hurts most for its size, with the KL divergence that it causes alone: {hurt}.{more} "
                "Choose another qformat, keep more by --quantize_override, or raise the limit"
            )
        while suffices - fails > 1:
            middle = (fails + suffices) // 2
            fails, suffices = (fails, middle) if loss(middle) <= limit else (middle, suffices)
    return sites[:suffices]


def _ranked(quantization: Quantization, directory: Path, report: Report) -> list[Site]:
    """All sites, beginning with the one that hurts most for its size."""
    chosen = quantization.recipe.choose(find_products(quantization.source.model.graph))
    groups = merged(list(chosen))
    compared, sites = Compared(quantization, directory), list[Site]()
    for done, group in enumerate(groups):
        names = tuple(product.name for product in group)
        divergence = compared.divergence(quantization.only(names).checkpoint)
        sites.append(Site(names, sum(product.num_elements for product in group), divergence))
        report("find what hurts", done + 1, len(groups))
    return sorted(sites, key=lambda site: -site.divergence / site.num_elements)


def _leading(sites: Sequence[Site], most: float) -> list[Site]:
    """The first sites, with up to ``most`` elements together."""
    leading: list[Site] = []
    for site in sites:
        most -= site.num_elements
        if most < 0:
            break
        leading.append(site)
    return leading


def _num_quantized(quantization: Quantization) -> int:
    """The number of elements of the matrices that the recipe quantizes."""
    chosen = quantization.recipe.choose(find_products(quantization.source.model.graph))
    return sum(product.num_elements for product in chosen)
