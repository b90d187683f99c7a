"""``trtllm-lite quantize``: a checkpoint whose products, or keys and values, are quantized."""

import time
from collections import Counter
from typing import Any

import click

from trtllm_lite.cli.framework import Command
from trtllm_lite.cli.quantize_options import (
    EIGHT_BIT_CACHES,
    QFORMAT_HELP,
    QFORMAT_TYPE,
    calibration_options,
    recipe_options,
    take_calibration,
    take_recipe,
)


@click.command(cls=Command, short_help="Quantize a checkpoint, with calibration where it is needed.")
@click.option("--checkpoint_dir", required=True, metavar="CKPT", help="Directory that `convert` wrote.")
@click.option("--output_dir", required=True, metavar="CKPT", help="Where the result goes; an older one is replaced.")
@click.option(
    "--qformat", type=QFORMAT_TYPE, metavar="QFORMAT", default="full_prec", show_default=True, help=QFORMAT_HELP
)
@click.option(
    "--kv_cache_dtype",
    type=click.Choice(EIGHT_BIT_CACHES),
    help="Round keys and values to 8 bits, with scales for each layer that calibration finds. [default: leave them]",
)
@recipe_options
@calibration_options
@click.option("--num_threads", type=int, help="Threads that calibrate on the CPU. [default: all cores]")
def quantize(checkpoint_dir: str, output_dir: str, qformat: str, num_threads: int | None, **options: Any) -> None:
    """Write a checkpoint whose products or KV cache are quantized, which `build` takes as any other.

    Calibration runs the model on a text and notes what its products multiply and its caches hold.

    \b
    Example:
      trtllm-lite quantize --checkpoint_dir ckpt --output_dir ckpt_int8 \\
        --qformat int8_sq
    Next:
      trtllm-lite build --checkpoint_dir ckpt_int8 --output_dir engine
    """
    from pathlib import Path

    from trtllm_lite.progress import progress_bars
    from trtllm_lite.stages.quantize import quantize_checkpoint

    begin = time.perf_counter()
    recipe, calibration = take_recipe(qformat, options), take_calibration(options, num_threads)
    with progress_bars() as report:
        decisions = quantize_checkpoint(Path(checkpoint_dir), Path(output_dir), recipe, calibration, report)
    click.echo(f"quantized {checkpoint_dir} as {recipe.describe()} in {time.perf_counter() - begin:.1f} s")
    for text, count in Counter(decision.text for decision in decisions).items():
        first = next(decision.site for decision in decisions if decision.text == text)
        click.echo(f"{count} of {len(decisions)} inputs ({first}{', …' if count > 1 else ''}): {text}")
    click.echo(f"next: trtllm-lite build --checkpoint_dir {output_dir} --output_dir ENGINE")
