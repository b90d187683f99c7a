"""``trtllm-lite quantize``: makes a checkpoint whose products, or keys and values, are quantized."""

import time
from typing import TYPE_CHECKING, Any

import click

from trtllm_lite.cli.framework import Command
from trtllm_lite.cli.option_types import Finite
from trtllm_lite.cli.quantize_options import (
    QFORMAT_HELP,
    QFORMAT_TYPE,
    calibration_options,
    print_decisions,
    recipe_options,
    take_calibration,
    take_recipe,
)
from trtllm_lite.cli.unused_options import check_calibration_options, check_recipe_options
from trtllm_lite.common.vocabulary import KV_CACHE_DTYPES

if TYPE_CHECKING:
    from trtllm_lite.quantize.mixed_precision import Choice


@click.command(cls=Command, short_help="Quantize a checkpoint, with calibration where it is needed.")
@click.option("--checkpoint_dir", required=True, metavar="CKPT", help="Directory that `convert` wrote.")
@click.option("--output_dir", required=True, metavar="CKPT", help="Directory for the result; an older one is replaced.")
@click.option(
    "--qformat", type=QFORMAT_TYPE, metavar="QFORMAT", default="full_prec", show_default=True, help=QFORMAT_HELP
)
@click.option(
    "--kv_cache_dtype",
    type=click.Choice(KV_CACHE_DTYPES),
    help="Round keys and values, or with --key_cache_dtype values alone, to 8 bits, with scales for each layer that "
    "calibration finds. [default: leave them]",
)
@click.option(
    "--autoq_format",
    metavar="QFORMAT[,…]",
    help="Choose for each group of products that an engine computes at once among these qformats and full_prec, by KL "
    "divergence.",
)
@click.option(
    "--auto_quantize_bits",
    type=Finite(min=0, min_open=True),
    metavar="BITS",
    help="With --autoq_format: bits for each weight, on average.",
)
@recipe_options
@calibration_options
@click.option("--num_threads", type=int, help="Threads that calibrate on the CPU. [default: all cores]")
def quantize(
    checkpoint_dir: str,
    output_dir: str,
    qformat: str,
    autoq_format: str | None,
    auto_quantize_bits: float | None,
    num_threads: int | None,
    **options: Any,
) -> None:
    """Write a checkpoint whose products or KV cache are quantized, which `build` takes as any other.

    Calibration runs the model on a text and measures the inputs of its products and the content of its caches.

    \b
    Example:
      trtllm-lite quantize --checkpoint_dir ckpt --output_dir ckpt_int8 \\
        --qformat int8_sq
    Next:
      trtllm-lite build --checkpoint_dir ckpt_int8 --output_dir engine
    """
    from dataclasses import replace
    from pathlib import Path

    from trtllm_lite.builder import open_checkpoint
    from trtllm_lite.common.files import require_replaceable
    from trtllm_lite.common.progress import progress_bars
    from trtllm_lite.engine.format import CONFIG_FILE
    from trtllm_lite.workflows.mixed_precision import choose_formats, note_of
    from trtllm_lite.workflows.quantize import quantize_checkpoint

    begin = time.perf_counter()
    recipe, calibration = take_recipe(qformat, options), take_calibration(options, num_threads)
    if (autoq_format is None) != (auto_quantize_bits is None):
        raise click.UsageError("pass --autoq_format and --auto_quantize_bits together")
    formats = [] if autoq_format is None else autoq_format.split(",")
    recipes = [replace(recipe, qformat=name) for name in formats] or [recipe]
    check_recipe_options(recipes)
    check_calibration_options(recipes, chooses=bool(formats))
    require_replaceable(Path(output_dir), CONFIG_FILE)
    notes = {}
    with progress_bars() as report:
        if auto_quantize_bits is not None:
            source = open_checkpoint(Path(checkpoint_dir))
            recipe, choices = choose_formats(source, recipe, formats, auto_quantize_bits, calibration, report)
            notes = note_of(choices)
            _print_choices(choices, auto_quantize_bits)
        decisions = quantize_checkpoint(Path(checkpoint_dir), Path(output_dir), recipe, calibration, report, notes)
    click.echo(f"quantized {checkpoint_dir} as {recipe.describe()} in {time.perf_counter() - begin:.1f} s")
    print_decisions(decisions)
    click.echo(f"next: trtllm-lite build --checkpoint_dir {output_dir} --output_dir ENGINE")


def _print_choices(choices: "list[Choice]", budget: float) -> None:
    from trtllm_lite.cli.console import print_table
    from trtllm_lite.quantize.mixed_precision import average_bits

    rows = [
        [str(choice.site), choice.candidate.qformat, f"{choice.candidate.divergence:.6f}", choice.reason]
        for choice in choices
    ]
    title = f"{average_bits(choices):.3f} bits for each weight, of a budget of {budget:g}"
    print_table(title, ["products", "qformat", "KL divergence alone", "reason"], rows)
