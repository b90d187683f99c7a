"""``trtllm-lite triton-repo``: writes a model repository for Triton Inference Server."""

import shlex

import click

from trtllm_lite.cli.framework import Command


@click.command(cls=Command, name="triton-repo", short_help="Write a model repository for Triton Inference Server.")
@click.argument("engine", metavar="ENGINE")
@click.argument("output_dir", metavar="OUT")
@click.option("--engine_dir", metavar="PATH", help="Where the server finds the engine, which then is not copied.")
def triton_repo(engine: str, output_dir: str, engine_dir: str | None) -> None:
    """Write a model repository for Triton Inference Server, which then serves ENGINE.

    The models are those that users of Triton's TensorRT-LLM backend know, with the same inputs and outputs: `ensemble`
    takes text and gives text, through `preprocessing`, `tensorrt_llm` and `postprocessing`. The engine is copied into
    OUT, which works wherever it is put; OUT must be absent or empty. Triton's Python needs trtllm_lite installed.

    \b
    Examples:
      trtllm-lite triton-repo engine triton_repo
      tritonserver --model-repository=triton_repo
      curl localhost:8000/v2/models/ensemble/generate_stream \\
        -d '{"text_input": "Once upon", "max_tokens": 32, "stream": true}'
    """
    from pathlib import Path

    from trtllm_lite.triton.repository import write_repository

    names = write_repository(Path(engine), Path(output_dir), engine_dir)
    click.echo(f"wrote {output_dir}: {', '.join(names)}")
    if len(names) == 1:
        click.echo("the engine has no tokenizer: the model takes and gives token ids")
    click.echo(f"next: tritonserver --model-repository={shlex.quote(output_dir)}")
