"""``trtllm-lite eval``: how well an engine predicts a text."""

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from trtllm_lite.cli.framework import Command
from trtllm_lite.cli.page_file import require_page, write_page

if TYPE_CHECKING:
    from trtllm_lite.evaluation.evaluate import Evaluation


@click.command(cls=Command, name="eval", short_help="Perplexity of a text, and distance from another engine.")
@click.option(
    "--engine_dir",
    "engine_dirs",
    required=True,
    multiple=True,
    metavar="ENGINE",
    help="Directory that `build` wrote; may be given several times.",
)
@click.option(
    "--dataset",
    metavar="FILE.txt",
    help="The text to predict, in UTF-8. [default: Python's language reference, which comes with Python]",
)
@click.option(
    "--reference_engine_dir",
    metavar="ENGINE",
    help="Another engine of the same model, for example with weights that are not quantized.",
)
@click.option("--window", type=int, help="Tokens of each window. [default: the engine's max_seq_len]")
@click.option("--max_tokens", type=int, help="Maximum number of tokens of the text to read. [default: all]")
@click.option("--num_threads", type=int, help="Threads that compute on the CPU. [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: an object, or a list of them for several engines.")
@click.option("--html", "html_path", metavar="FILE", help="Write accuracy against size as a page for a browser.")
def evaluate(
    engine_dirs: tuple[str, ...], dataset: str | None, as_json: bool, html_path: str | None, **options: Any
) -> None:
    """Perplexity of a text: how well an engine predicts each token from the tokens before it.

    The text is cut into windows that do not overlap. A reference engine adds the mean KL divergence of the engine's
    predictions from the reference's, and how often both find the same token likeliest.

    \b
    Examples:
      trtllm-lite eval --engine_dir engine --dataset text.txt \\
        --reference_engine_dir engine_bf16
      trtllm-lite eval --engine_dir engine_int8 --engine_dir engine_int4 \\
        --reference_engine_dir engine_bf16 --html accuracy.html
    """
    from pathlib import Path

    from trtllm_lite.common.progress import progress_bars
    from trtllm_lite.evaluation import evaluate as run

    if html_path is not None:
        require_page(Path(html_path))
    text = Path(dataset) if dataset else None
    with progress_bars() as report:
        results = [run(Path(engine_dir), text, progress=report, **options) for engine_dir in engine_dirs]
    if as_json:
        found = [dataclasses.asdict(result) for result in results]
        click.echo(json.dumps(found[0] if len(found) == 1 else found, indent=2))
    else:
        for engine_dir, result in zip(engine_dirs, results, strict=True):
            _print(engine_dir if len(results) > 1 else "", result)
    if html_path is not None:
        write_page(Path(html_path), _page(engine_dirs, results, options["reference_engine_dir"]), quiet=as_json)


def _page(engine_dirs: Sequence[str], results: "Sequence[Evaluation]", reference_dir: str | None) -> str:
    """The page of ``results``; the reference's perplexity is that in the first engine's result."""
    from pathlib import Path

    from trtllm_lite.engine.reader import read_engine
    from trtllm_lite.evaluation.page import Evaluated, render_page

    def evaluated(engine_dir: str, result: "Evaluation") -> Evaluated:
        manifest = read_engine(Path(engine_dir)).manifest
        return Evaluated(engine_dir, manifest.qformat, manifest.memory.weights, result)

    reference = None
    if reference_dir is not None and (against := results[0].reference) is not None:
        own = dataclasses.replace(results[0], perplexity=against.perplexity, reference=None)
        reference = evaluated(reference_dir, own)
    return render_page([*map(evaluated, engine_dirs, results)], reference)


def _print(name: str, result: "Evaluation") -> None:
    from trtllm_lite.cli.console import print_table
    from trtllm_lite.common.units import counted

    rows = [["perplexity", f"{result.perplexity:.4f}"]]
    if (against := result.reference) is not None:
        rows += [
            ["perplexity of the reference", f"{against.perplexity:.4f}"],
            ["increase of perplexity", f"{against.perplexity_increase:+.3%}"],
            ["KL divergence, nats per token", f"{against.kl_divergence:.6f}"],
            ["same likeliest token", f"{against.top1_agreement:.2%}"],
        ]
    windows = counted(result.num_windows, "window")
    title = f"{result.dataset}: {counted(result.num_tokens, 'token')} in {windows} of {result.window}"
    print_table(f"{name}: {title}" if name else title, ["", ""], rows)
