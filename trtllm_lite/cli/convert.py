"""``trtllm-lite convert``: a model becomes a checkpoint."""

import shlex
import time
from collections.abc import Mapping
from typing import Any

import click

from trtllm_lite.cli.foreign_options import foreign_options
from trtllm_lite.cli.framework import Command
from trtllm_lite.common.units import counted
from trtllm_lite.common.vocabulary import AUTO, AUTO_16_BITS, PLAIN_DTYPES
from trtllm_lite.foreign_names.commands import CONVERT


def take_conversion(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``convert_checkpoint`` for the values of this command's options. Raises click.UsageError."""
    keys, pinned = options["ignore_config_keys"] or "", {}
    for text in options["sha256"]:
        name, equals, digest = text.rpartition("=")
        if not equals:
            raise click.UsageError(f"--sha256 {text}: expected FILE=DIGEST")
        pinned[name] = digest
    return {
        **{name: options[name] for name in ("dtype", "dequantize", "revision")},
        "ignore_config_keys": tuple(sorted({key.strip() for key in keys.split(",") if key.strip()})),
        "sha256": pinned,
    }


@click.command(cls=Command, short_help="Turn a model into a checkpoint.")
@click.option(
    "--model_dir",
    required=True,
    metavar="DIR|FILE.gguf|HUB_ID",
    help="A Hugging Face directory (safetensors), a GGUF file, or a hub id such as org/model.",
)
@click.option(
    "--output_dir", required=True, metavar="CKPT", help="Directory for the checkpoint; an older one is replaced."
)
@click.option(
    "--dtype",
    type=click.Choice([AUTO, AUTO_16_BITS, *PLAIN_DTYPES]),
    default=AUTO,
    show_default=True,
    help="Storage type of the matrices; auto keeps the model's own (float16 for quantized GGUF); so does "
    "auto_16_bits, except that float32 becomes bfloat16, as GPUs need it. Matrices that stay in the blocks of a "
    "quantized model have the model's own type.",
)
@click.option(
    "--dequantize",
    is_flag=True,
    help="Expand the blocks of a quantized model to --dtype, and leave its activations as they are.",
)
@click.option("--revision", metavar="REV", help="Commit, branch or tag on the hub. [default: its main branch]")
@click.option(
    "--sha256",
    multiple=True,
    metavar="FILE=DIGEST",
    help="Refuse the model if this file has another digest; needed for each file of weights, and possible for others.",
)
@click.option(
    "--ignore_config_keys",
    metavar="NAME,…",
    help="Keys of the model's config.json to leave unread, or OBJECT.KEY, or FILE.KEY of another file such as "
    "tokenizer_config.add_prefix_space, of which you know that they change nothing; the checkpoint and its engines "
    "record them.",
)
@click.option(
    "--draft_model_dir",
    metavar="DIR|HUB_ID",
    help="An EAGLE-3 head of this model, or the model itself if a layer of it drafts (MTP): let engines of the "
    "checkpoint keep the features that it drafts from.",
)
@click.option(
    "--target_model_dir",
    metavar="DIR|FILE.gguf|HUB_ID",
    help="For an EAGLE-3 head, the model that it drafts for: its embedding is taken if the head has none. For a model "
    "of which a layer drafts (MTP), the model again: the checkpoint is of this layer.",
)
@click.option("--text_only", is_flag=True, help="Leave out the vision tower of a model that takes images.")
@foreign_options(CONVERT)
def convert(
    model_dir: str,
    output_dir: str,
    draft_model_dir: str | None,
    target_model_dir: str | None,
    text_only: bool,
    **how: Any,
) -> None:
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

    from trtllm_lite.common.progress import progress_bars
    from trtllm_lite.convert import convert_checkpoint

    begin = time.perf_counter()
    with progress_bars() as report:
        # There is one progress bar for all tensors, not one for each.
        converted = convert_checkpoint(
            model_dir,
            Path(output_dir),
            progress=lambda _, done, total: report("convert", done, total),
            draft_model_dir=draft_model_dir,
            target_model_dir=target_model_dir,
            text_only=text_only,
            **take_conversion(how),
        )
    config = converted.config
    click.echo(
        f"converted {config.architecture} to {output_dir} in {time.perf_counter() - begin:.1f} s: "
        f"{counted(config.num_hidden_layers, 'layer')}, {converted.describe()}"
    )
    if not config.tokenizer:
        click.echo(
            "the model comes without a tokenizer (tokenizer.json or tokenizer.model): its engines take and give token "
            "ids, not text"
        )
    click.echo(f"next: trtllm-lite build --checkpoint_dir {shlex.quote(output_dir)} --output_dir ENGINE")
