"""``trtllm-lite pull``: fetches an engine from an OCI registry."""

import shlex

import click

from trtllm_lite.cli.framework import Command
from trtllm_lite.cli.push import plain_http_option
from trtllm_lite.cli.verify import key_option


@click.command(cls=Command, short_help="Fetch an engine from an OCI registry.")
@click.argument("reference", metavar="REF")
@click.option(
    "--output_dir", required=True, metavar="ENGINE", help="Directory for the engine; an older one is replaced."
)
@click.option("--require_provenance", is_flag=True, help="Refuse an engine without provenance.")
@key_option
@plain_http_option
def pull(reference: str, output_dir: str, require_provenance: bool, key: str | None, plain_http: bool) -> None:
    """Fetch an engine that `push` sent to an OCI registry.

    REF is HOST[:PORT]/NAME[:TAG], or HOST[:PORT]/NAME@sha256:…, which is always the same engine. Every file is checked
    against its digest, and then the engine against its provenance, as `verify` does; with --key the provenance must be
    signed by that key. Nothing is written if anything differs.

    \b
    Example:
      trtllm-lite pull ghcr.io/team/smollm2:1.0 --output_dir engine --key team.pub
    """
    from pathlib import Path

    from trtllm_lite.common.progress import progress_bars
    from trtllm_lite.common.units import format_bytes
    from trtllm_lite.registry import parse_reference, pull_engine

    source = parse_reference(reference)
    with progress_bars() as report:
        pulled = pull_engine(
            source,
            Path(output_dir),
            report,
            plain_http,
            require_provenance=require_provenance,
            key_file=None if key is None else Path(key),
        )
    click.echo(f"pulled {output_dir}, {format_bytes(pulled.num_bytes)}: {source.pinned(pulled.digest)}")
    if pulled.engine.provenance is None:
        click.echo("checked: digests and checksums; the engine has no provenance to verify")
    else:
        click.echo(f"checked: digests and provenance; the engine was made by {pulled.engine.provenance.producer}")
        click.echo(pulled.engine.trust.words)
    click.echo(f"next: trtllm-lite inspect {shlex.quote(output_dir)}")
