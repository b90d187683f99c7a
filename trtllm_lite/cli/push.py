"""``trtllm-lite push``: sends an engine to an OCI registry."""

import click

from trtllm_lite.cli.framework import Command, Decorated


def plain_http_option(function: Decorated) -> Decorated:
    """The option of the commands that talk to a registry."""
    help_text = "Talk to a registry that has no https. Registries on localhost need no such flag."
    return click.option("--plain_http", is_flag=True, help=help_text)(function)


@click.command(cls=Command, short_help="Send an engine to an OCI registry.")
@click.argument("engine", metavar="ENGINE")
@click.argument("reference", metavar="REF")
@plain_http_option
def push(engine: str, reference: str, plain_http: bool) -> None:
    """Send an engine to an OCI registry as an artifact, with its provenance and SBOM.

    REF is HOST[:PORT]/NAME[:TAG]; without a tag it is latest. The last line is the reference by digest, which always
    means this very engine. Credentials are those of `docker login`. What the registry has already is not sent again.

    \b
    Example:
      trtllm-lite push engine ghcr.io/team/smollm2:1.0
    """
    from pathlib import Path

    from trtllm_lite.common.progress import progress_bars
    from trtllm_lite.registry import parse_reference, push_engine

    target = parse_reference(reference)
    with progress_bars() as report:
        digest = push_engine(Path(engine), target, report, plain_http)
    click.echo(f"pushed {engine} as {target}")
    click.echo(target.pinned(digest))
