"""``trtllm-lite convert``: a model becomes a checkpoint."""

import shlex
import time

import click

from trtllm_lite.cli.framework import Command, replaced_options
from trtllm_lite.cli.replaced import CONVERT
from trtllm_lite.units import counted
from trtllm_lite.vocabulary import PLAIN_DTYPES


@click.command(cls=Command, short_help="Turn a model into a checkpoint.")
@click.option(
    "--model_dir",
    required=True,
    metavar="DIR|FILE.gguf|HUB_ID",
    help="A Hugging Face directory (safetensors), a GGUF file, or a hub id such as org/model.",
)
@click.option(
    "--output_dir", required=True, metavar="CKPT", help="Where the checkpoint goes; an older one is replaced."
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", *PLAIN_DTYPES]),
    default="auto",
    show_default=True,
    help="Storage type of the matrices; auto keeps the model's own (float16 for quantized GGUF). Matrices that stay in "
    "the blocks of a quantized model have the model's own type.",
)
@click.option(
    "--dequantize",
    is_flag=True,
    help="Expand the blocks of a quantized model to --dtype, and leave its activations as they are.",
)
@click.option(
    "--ignore_config_keys",
    metavar="NAME,…",
    help="Keys of the model's config.json to leave unread, of which you know that they change nothing; the checkpoint "
    "and its engines record them.",
)
@replaced_options(CONVERT)
def convert(model_dir: str, output_dir: str, dtype: str, dequantize: bool, ignore_config_keys: str | None) -> None:
    """Turn a model into a checkpoint: standard ONNX network, safetensors weights, tokenizer.

    Nothing is unpickled and no code of the model is run. Nothing is written if anything fails.

    \b
    Examples:
      trtllm-lite convert --model_dir SmolLM2-135M-Instruct.Q4_1.gguf \\
        --output_dir ckpt --dtype bfloat16
      trtllm-lite convert --model_dir HuggingFaceTB/SmolLM2-135M-Instruct \\
        --output_dir ckpt
    Next:
      trtllm-lite build --checkpoint_dir ckpt --output_dir engine
    """
    from pathlib import Path

    from trtllm_lite.convert import convert_checkpoint
    from trtllm_lite.progress import progress_bars

    begin = time.perf_counter()
    with progress_bars() as report:
        # One bar for all tensors, not one for each.
        config = convert_checkpoint(
            model_dir,
            Path(output_dir),
            dtype=dtype,
            progress=lambda _, done, total: report("convert", done, total),
            ignore_config_keys=[key.strip() for key in (ignore_config_keys or "").split(",") if key.strip()],
            dequantize=dequantize,
        )
    click.echo(
        f"converted {config.architecture} to {output_dir} in {time.perf_counter() - begin:.1f} s: "
        f"{counted(config.num_hidden_layers, 'layer')}, {config.dtype} weights"
    )
    if not config.tokenizer:
        click.echo(
            "the model comes without a tokenizer (tokenizer.json or tokenizer.model): its engines take and give token "
            "ids, not text"
        )
    click.echo(f"next: trtllm-lite build --checkpoint_dir {shlex.quote(output_dir)} --output_dir ENGINE")
