"""``trtllm-lite inspect``: describes a checkpoint or an engine."""

import json

import click

from trtllm_lite.cli.framework import Command


@click.command(cls=Command, short_help="Describe a checkpoint or an engine.")
@click.argument("path", metavar="ENGINE|CKPT")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--kernels", is_flag=True, help="Also list how each kernel of a GPU engine is compiled, and why.")
def inspect(path: str, as_json: bool, kernels: bool) -> None:
    """Describe a checkpoint or an engine: model, limits, operators, memory by kind, size, fusions.

    For each pass it shows how many candidates were fused, and why the others were not.

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
