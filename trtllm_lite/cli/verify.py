"""``trtllm-lite verify``: holds an engine against its provenance."""

import json
from dataclasses import asdict

import click

from trtllm_lite.cli.framework import Command


@click.command(cls=Command, short_help="Hold an engine against its provenance.")
@click.argument("engine", metavar="ENGINE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(engine: str, as_json: bool) -> None:
    """Check every file of an engine against the provenance that `build --provenance` wrote beside it.

    This needs no GPU and none of what the engine was made of. The error names all files that differ. That the statement
    itself is genuine, a signature says, such as cosign's or GitHub's attestations.

    \b
    Example:
      trtllm-lite verify engine
    """
    from pathlib import Path

    from trtllm_lite.engine.provenance import verify_engine
    from trtllm_lite.printable import one_line
    from trtllm_lite.units import counted

    found = verify_engine(Path(engine))
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    click.echo(f"verified {engine}: {counted(len(found.files), 'file')}, made by {found.producer}")
    for material in found.materials:
        digests = ", ".join(f"{name} {digest}" for name, digest in material.digest.items())
        click.echo(one_line(f"made of {material.name}: {digests}"))
