"""``trtllm-lite inspect``: what a checkpoint or an engine is."""

import json

import click

from trtllm_lite.cli.framework import Command


@click.command(cls=Command, short_help="Show what a checkpoint or an engine is.")
@click.argument("path", metavar="ENGINE|CKPT")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--kernels", is_flag=True, help="Also list the kernels of a GPU engine: how they are compiled, and why.")
def inspect(path: str, as_json: bool, kernels: bool) -> None:
    """Show what a checkpoint or an engine is: model, limits, operators, memory by kind, size.

    Fusions too: how many candidates each pass fused, and why the others were not.

    \b
    Examples:
      trtllm-lite inspect engine
      trtllm-lite inspect engine --kernels
      trtllm-lite inspect ckpt --json
    """
    from pathlib import Path

    from rich.console import Console

    from trtllm_lite.engine.inspect import inspect_path

    inspection = inspect_path(Path(path))
    if as_json:
        click.echo(json.dumps(inspection.to_dict(), indent=2))
    else:
        inspection.render(Console(), kernels=kernels)
