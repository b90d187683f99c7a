"""``trtllm-lite build`` and ``trtllm-lite plan``: the same flags, one compiles and one predicts."""

import json
import shlex
import time
from collections.abc import Callable
from typing import Any

import click

from trtllm_lite.cli.framework import Command, Decorated, replaced_options
from trtllm_lite.cli.replaced import BUILD


def _build_options(function: Decorated) -> Decorated:
    options: list[Callable[[Any], Any]] = [
        click.option("--checkpoint_dir", required=True, metavar="CKPT", help="Directory that `convert` wrote."),
        click.option("--max_batch_size", default=8, show_default=True, help="Sequences that run at once."),
        click.option("--max_input_len", default=1024, show_default=True, help="Tokens of a prompt."),
        click.option(
            "--max_seq_len", default=2048, show_default=True, help="Tokens of a prompt and its output together."
        ),
        click.option(
            "--max_num_tokens",
            type=int,
            help="Tokens of one step, all sequences together; longer prompts are split. "
            "[default: max_batch_size * max_input_len, at most 2048]",
        ),
        click.option(
            "--tokens_per_block", default=32, show_default=True, help="Tokens of one KV cache block: 16, 32, 64 or 128."
        ),
        click.option("--gather_context_logits", is_flag=True, help="Make the logits of all prompt tokens available."),
        click.option("--target", default="cpu", show_default=True, help="What the engine runs on."),
        replaced_options(BUILD),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.command(cls=Command)
@_build_options
@click.option("--output_dir", required=True, metavar="ENGINE", help="Where the engine goes; an older one is replaced.")
def build(checkpoint_dir: str, output_dir: str, **limits: Any) -> None:
    """Compile a checkpoint into an engine.

    Takes seconds and no GPU. The same checkpoint and flags give the same bytes. Nothing is written if anything fails.

    \b
    Example:
      trtllm-lite build --checkpoint_dir ckpt --output_dir engine \\
        --max_batch_size 8 --max_input_len 1024 --max_seq_len 2048
    Next:
      trtllm-lite generate --engine_dir engine --prompt "Once upon a time"
    """
    from pathlib import Path

    from trtllm_lite.builder import build_engine
    from trtllm_lite.cli.console import megabytes, progress_bars

    begin = time.perf_counter()
    with progress_bars() as report:
        manifest = build_engine(Path(checkpoint_dir), Path(output_dir), progress=report, **limits)
    memory, fused = manifest.memory, sum(fusion.fused for fusion in manifest.fusions)
    click.echo(
        f"built {output_dir} in {time.perf_counter() - begin:.1f} s: {manifest.model.architecture}, "
        f"{fused} of {len(manifest.fusions)} fusions made; weights {megabytes(memory.weights)}, "
        f"KV cache {megabytes(memory.kv_cache)}, workspace {megabytes(memory.workspace)}"
    )
    click.echo(f'next: trtllm-lite generate --engine_dir {shlex.quote(output_dir)} --prompt "Once upon a time"')


@click.command(cls=Command)
@_build_options
@click.option("--num_threads", type=int, help="Threads at run time; each has scratch memory. [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(checkpoint_dir: str, as_json: bool, **limits: Any) -> None:
    """Predict the memory of an engine before building it.

    Reads no weights and writes nothing. The flags are those of `build`.

    \b
    Example:
      trtllm-lite plan --checkpoint_dir ckpt --max_batch_size 8 --max_input_len 1024 --max_seq_len 2048
    """
    from pathlib import Path

    from trtllm_lite.builder import plan_memory
    from trtllm_lite.cli.console import megabytes, print_table

    memory = plan_memory(Path(checkpoint_dir), **limits)
    if as_json:
        click.echo(json.dumps(memory.to_dict(), indent=2))
        return
    meaning = {
        "weights": "as stored in the engine, mapped from the file",
        "kv_cache": f"{limits['max_batch_size']} sequences of {limits['max_seq_len']} tokens",
        "workspace": f"intermediate values and scratch of {memory.num_threads} threads",
        "total": "",
    }
    values = memory.to_dict()
    rows = [[name, f"{values[name]:,}", megabytes(values[name]), text] for name, text in meaning.items()]
    print_table("predicted memory", ["", "bytes", "", "what for"], rows)
