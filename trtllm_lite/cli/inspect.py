"""``trtllm-lite inspect``: describes a checkpoint or an engine as text, JSON or a page, or compares two engines."""

import json
from pathlib import Path

import click

from trtllm_lite.cli.framework import Command
from trtllm_lite.cli.page_file import require_page, write_page

RESULTS_DIFFER = 3  # exit code; 1 and 2 are errors


@click.command(cls=Command, short_help="Describe a checkpoint or an engine, or compare two engines.")
@click.argument("path", metavar="ENGINE|CKPT")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--kernels", is_flag=True, help="Also list how each kernel of a GPU engine is compiled, and why.")
@click.option("--html", "page", metavar="FILE", help="Write all this as a page for a browser, which needs no network.")
@click.option("--diff", "other", metavar="ENGINE", help="Compare with this engine instead.")
def inspect(path: str, as_json: bool, kernels: bool, page: str | None, other: str | None) -> None:
    """Describe a checkpoint or an engine: model, limits, operators, memory by kind, size, fusions.

    For each pass it shows how many candidates were fused, and why the others were not. With --html it writes one file
    that has everything: the steps of each program, the arena, tactics with their timings, kernels, weights, files.

    With --diff it shows what differs between two engines. The exit code is 3 if something differs that can change
    tokens or logits, and 0 if nothing does. The provenance of both is compared, too, but only to explain differences in
    what the engines hold.

    \b
    Examples:
      trtllm-lite inspect engine
      trtllm-lite inspect engine --kernels
      trtllm-lite inspect ckpt --json
      trtllm-lite inspect engine --html engine.html
      trtllm-lite inspect engine --diff older_engine
    """
    if page is not None:
        if as_json or kernels or other is not None:
            raise click.UsageError("--html writes a page of everything: leave --json, --kernels and --diff out")
        _write_page(Path(path), Path(page))
    elif other is None:
        _describe(Path(path), as_json, kernels)
    elif kernels:
        raise click.UsageError("--diff compares kernels anyway: leave --kernels out; --json lists all that differ")
    else:
        _compare(Path(path), Path(other), as_json)


def _describe(path: Path, as_json: bool, kernels: bool) -> None:
    from rich.console import Console

    from trtllm_lite.workflows.inspect import inspect_path

    inspection = inspect_path(path)
    if as_json:
        click.echo(json.dumps(inspection.to_dict(), indent=2))
    else:
        inspection.render(Console(), kernels=kernels)


def _write_page(path: Path, page: Path) -> None:
    from trtllm_lite.engine.page import render_page
    from trtllm_lite.workflows.inspect import inspect_path

    require_page(page)
    write_page(page, render_page(inspect_path(path)))


def _compare(a: Path, b: Path, as_json: bool) -> None:
    from rich.console import Console

    from trtllm_lite.engine.difference import compare_paths

    comparison = compare_paths(a, b)
    if as_json:
        click.echo(json.dumps(comparison.to_dict(), indent=2))
    else:
        comparison.render(Console())
    if comparison.changes_results:
        click.get_current_context().exit(RESULTS_DIFFER)
