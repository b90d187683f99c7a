"""Renders evaluations of several engines as one HTML page: their accuracy against the size of their weights."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trtllm_lite.common.units import short
from trtllm_lite.evaluation.evaluate import Evaluation
from trtllm_lite.pages.charts import NUM_COLORS, Axis, Chart, Curve
from trtllm_lite.pages.document import render


@dataclass(frozen=True)
class Evaluated:
    """An engine by its directory, the format and the bytes of its weights, and how well it predicts a text."""

    name: str
    qformat: str
    weight_bytes: int
    result: Evaluation


def render_page(engines: Sequence[Evaluated], reference: Evaluated | None) -> str:
    """The page of ``engines``; their ``reference`` is evaluated, too."""
    charts = list(_charts(engines, reference))
    return render(Path(__file__).parent, engines=engines, reference=reference, charts=charts)


def _charts(engines: Sequence[Evaluated], reference: Evaluated | None) -> Iterator[Chart]:
    yield _chart("Perplexity", [(one, one.result.perplexity) for one in engines], "{:.4g}".format, reference)
    compared = [(one, one.result.reference) for one in engines if one.result.reference is not None]
    if compared:
        distances = [(one, against.kl_divergence) for one, against in compared]
        yield _chart("KL divergence, nats a token", distances, partial(short, unit=""))
        agreements = [(one, against.top1_agreement) for one, against in compared]
        yield _chart("Same likeliest token", agreements, "{:.1%}".format)


def _chart(
    title: str,
    values: Sequence[tuple[Evaluated, float]],
    text: Callable[[float], str],
    reference: Evaluated | None = None,
) -> Chart:
    """A dot for each engine and for the reference, each with its own color and name."""
    shown = [*values, *([] if reference is None else [(reference, reference.result.perplexity)])]
    curves = [
        Curve(one.name, [(float(one.weight_bytes), value)], color % NUM_COLORS, "dots", [one.name])
        for color, (one, value) in enumerate(shown)
    ]
    return Chart(title, Axis("bytes of weights", partial(short, unit="B")), Axis("", text, near=True), curves)
