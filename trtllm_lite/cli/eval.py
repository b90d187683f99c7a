"""``trtllm-lite eval``: how well an engine predicts a text."""

import dataclasses
import json
from typing import Any

import click

from trtllm_lite.cli.framework import Command


@click.command(cls=Command, name="eval", short_help="Perplexity of a text, and distance from another engine.")
@click.option("--engine_dir", required=True, metavar="ENGINE", help="Directory that `build` wrote.")
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
@click.option("--max_tokens", type=int, help="Read at most so many tokens of the text. [default: all]")
@click.option("--num_threads", type=int, help="Threads that compute on the CPU. [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(engine_dir: str, dataset: str | None, as_json: bool, **options: Any) -> None:
    """Perplexity of a text: how well an engine predicts each token from those before.

    The text is cut into windows that do not overlap. With a reference engine also the mean KL divergence of the
    engine's predictions from the reference's, and how often both find the same token likeliest.

    \b
    Example:
      trtllm-lite eval --engine_dir engine --dataset text.txt \\
        --reference_engine_dir engine_bf16
    """
    from pathlib import Path

    from trtllm_lite.evaluation import evaluate as run
    from trtllm_lite.progress import progress_bars

    with progress_bars() as report:
        result = run(Path(engine_dir), Path(dataset) if dataset else None, progress=report, **options)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(result), indent=2))
        return
    from trtllm_lite.cli.console import print_table
    from trtllm_lite.units import counted

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
    print_table(title, ["", ""], rows)
