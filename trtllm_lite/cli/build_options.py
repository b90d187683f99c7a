"""Defines the options that `build` and `plan` share, and reads the source of a build."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_lite.cli.framework import together
from trtllm_lite.cli.option_types import NumBytes
from trtllm_lite.cli.quantize_options import CACHE_DTYPE_TYPE, QFORMAT_HELP, QFORMAT_TYPE, STATE_DTYPE_TYPE
from trtllm_lite.common.vocabulary import (
    ALLREDUCE_STRATEGIES,
    AUTO_TARGET,
    BY_TENSORRT,
    FLOAT32,
    ON_CPU,
    ON_GPU,
    STATE_BUDGET,
)

if TYPE_CHECKING:
    from trtllm_lite.builder import Checkpoint

_source_options = together(
    click.option(
        "--checkpoint_dir",
        type=click.Path(path_type=Path),
        metavar="CKPT",
        help="Directory that `convert` wrote.",
    ),
    click.option(
        "--model_config",
        metavar="FILE",
        help="Instead of a checkpoint, the config.json of a model: its shape without its weights.",
    ),
)
_limit_options = together(
    click.option(
        "--max_batch_size",
        type=int,
        help=f"Sequences that run at once. [default: {ON_GPU.max_batch_size} on GPUs, or less if memory is short, "
        f"{ON_CPU.max_batch_size} on CPUs]",
    ),
    click.option("--max_input_len", type=int, help="Tokens of a prompt. [default: max_seq_len]"),
    click.option(
        "--max_seq_len",
        type=int,
        help="Tokens of a prompt and its output together. [default: what the model takes, or less if memory is short; "
        f"by TensorRT at most {BY_TENSORRT.max_seq_len}]",
    ),
    click.option(
        "--max_num_tokens",
        type=int,
        help="Tokens of one step, all sequences together; longer prompts are split. [default: max_batch_size * "
        f"max_input_len, at most {ON_GPU.max_num_tokens} on GPUs and {ON_CPU.max_num_tokens} on CPUs]",
    ),
    click.option(
        "--device_memory",
        type=NumBytes(),
        help="Memory of each GPU, such as 80GB, to which limits that are not given are fitted. "
        "[default: that of this machine's GPUs, if the target is auto]",
    ),
    click.option("--tokens_per_block", type=int, help="Tokens of one KV cache block: 16, 32, 64 or 128. [default: 32]"),
    click.option(
        "--max_beam_width",
        type=int,
        help="Beams of one search, each of which takes a place in the batch. [default: max_batch_size]",
    ),
    click.option(
        "--max_draft_len",
        type=int,
        help="Draft tokens that a sequence may bring to a step (speculative decoding), at most 8. [default: 0]",
    ),
    click.option(
        "--max_lora_rank",
        type=int,
        help="Highest rank of adapters (LoRA) of requests, a multiple of 8, at most 512. [default: 0, none]",
    ),
)
_rank_options = together(
    click.option(
        "--tp_size",
        type=int,
        help="Devices that split every layer (tensor parallelism), up to 16; each has an engine. [default: 1]",
    ),
    click.option(
        "--pp_size",
        type=int,
        help="Pipeline stages, each with some of the layers, on tp_size devices (pipeline parallelism), up to 16. "
        "[default: 1]",
    ),
    click.option(
        "--moe_ep_size",
        type=int,
        help="Groups of the tp_size devices, each with some of the experts of mixtures (expert parallelism); the "
        "tp_size / moe_ep_size devices of a group split each expert. [default: 1]",
    ),
    click.option(
        "--allreduce_strategy",
        type=click.Choice(ALLREDUCE_STRATEGIES),
        default=ALLREDUCE_STRATEGIES[0],
        show_default=True,
        help="How the tp_size GPUs communicate. AUTO: kernels access the memory of other GPUs (NVLink, or PCIe peer to "
        "peer). NCCL: by that library, where this access is missing.",
    ),
)
_result_options = together(
    click.option("--gather_context_logits", is_flag=True, help="Make the logits of all prompt tokens available."),
    click.option(
        "--enable_prompt_embeds",
        is_flag=True,
        help="Let rows of embeddings take the place of tokens in prompts.",
    ),
    click.option(
        "--deterministic",
        is_flag=True,
        help="Make results on sm_90 independent of what else runs, bit for bit, as they always are on CPUs.",
    ),
)
_format_options = together(
    click.option(
        "--qformat",
        type=QFORMAT_TYPE,
        metavar="QFORMAT",
        default="full_prec",
        show_default=True,
        help=QFORMAT_HELP,
    ),
    click.option(
        "--kv_cache_dtype",
        type=CACHE_DTYPE_TYPE,
        default="auto",
        show_default=True,
        help="Type of the KV cache. fp8 and int8 (CPUs, sm_90) have scales, which calibration finds. "
        "auto is what the checkpoint was quantized to, or else float32 on CPUs, and the type of activations on "
        "GPUs. The others leave keys and values as they are, whatever the checkpoint was quantized to.",
    ),
    click.option(
        "--state_dtype",
        type=STATE_DTYPE_TYPE,
        default=FLOAT32,
        show_default=True,
        help="Type in which recurrent layers store their matrices; they compute in float32. auto is the cheapest that "
        f"changes results by at most {STATE_BUDGET:.1%}, as the build measures.",
    ),
)
_target_options = together(
    click.option(
        "--backend",
        type=click.Choice(["native", "tensorrt"]),
        default="native",
        show_default=True,
        help="Kernels of the engine: this project's or, for RTX GPUs, those of NVIDIA's TensorRT.",
    ),
    click.option(
        "--target",
        multiple=True,
        default=[AUTO_TARGET],
        show_default=True,
        metavar="auto|cpu|sm_90[,sm_80,…]",
        help="What the engine runs on: this machine's GPUs, or its CPU if it has none (auto), CPUs, or NVIDIA GPUs of "
        "these architectures (building needs no GPU).",
    ),
)
build_options = together(
    _source_options,
    _limit_options,
    _rank_options,
    _result_options,
    _format_options,
    _target_options,
)


def take_target(options: dict[str, Any]) -> None:
    """Replace the target auto by the target of this machine, report it, and fit limits to its GPUs.

    Raises click.UsageError if auto is one target of several, and the errors of ``local_target``.
    """
    from trtllm_lite.builder.local_target import local_target

    if AUTO_TARGET not in options["target"]:
        return
    if len(options["target"]) > 1:
        raise click.UsageError(f"--target {AUTO_TARGET} is this machine: pass it alone, or the architectures by name")
    local = local_target()
    click.echo(str(local), err=True)
    options["target"] = local.names
    if options["device_memory"] is None:
        options["device_memory"] = local.device_memory


def source_of(checkpoint: "Path | Checkpoint | None", model_config: str | None) -> "Checkpoint":
    """The source of a build or plan: a checkpoint, or the shape in a model's config.json. Raises click.UsageError."""
    from trtllm_lite.builder import checkpoint_of_shape, open_checkpoint

    if (checkpoint is None) == (model_config is None):
        raise click.UsageError("pass --checkpoint_dir, or --model_config for the shape of a model without its weights")
    if checkpoint is not None:
        return open_checkpoint(checkpoint) if isinstance(checkpoint, Path) else checkpoint
    from trtllm_lite.convert import open_model_config

    model = open_model_config(Path(str(model_config)))
    return checkpoint_of_shape(model.config, model.network)
