"""``trtllm-lite verify``: checks an engine against its provenance, and the provenance against a signature."""

import json
from dataclasses import asdict

import click

from trtllm_lite.cli.framework import Command, Decorated


def key_option(function: Decorated) -> Decorated:
    """The option of the commands that check signatures."""
    help_text = "Public key (PEM) that must verify the signature of the provenance."
    return click.option("--key", metavar="FILE", help=help_text)(function)


@click.command(cls=Command, short_help="Check an engine against its provenance.")
@click.argument("engine", metavar="ENGINE")
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(engine: str, key: str | None, as_json: bool) -> None:
    """Check every file of an engine against the provenance that `build --provenance` wrote beside it.

    This needs neither a GPU nor the sources of the engine. The error names all files that differ. With --key the
    provenance itself must be signed by that key, as `sign` does it; without --key nobody vouches for it.

    \b
    Examples:
      trtllm-lite verify engine
      trtllm-lite verify engine --key team.pub
    """
    from pathlib import Path

    from trtllm_lite.common.printable import one_line
    from trtllm_lite.common.units import counted
    from trtllm_lite.engine.verification import trust_in, verify_engine

    found = verify_engine(Path(engine))
    trust = trust_in(Path(engine), None if key is None else Path(key))
    if as_json:
        click.echo(json.dumps(asdict(found) | {"signed_by": trust.key_id}, indent=2))
        return
    result = "the same as its provenance says" if trust.key_id is None else "verified"
    click.echo(f"{engine}: {result}: {counted(len(found.files), 'file')}, made by {found.producer}")
    click.echo(trust.words)
    for material in found.materials:
        digests = ", ".join(f"{name} {digest}" for name, digest in material.digest.items())
        click.echo(one_line(f"made of {material.name}: {digests}"))
