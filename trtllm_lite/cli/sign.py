"""``trtllm-lite sign``: signs the provenance of an engine."""

import shlex

import click

from trtllm_lite.cli.framework import Command


@click.command(cls=Command, short_help="Sign the provenance of an engine.")
@click.argument("engine", metavar="ENGINE")
@click.option("--key", required=True, metavar="FILE", help="Private key (PEM, PKCS #8) without a password.")
def sign(engine: str, key: str) -> None:
    """Sign the provenance that `build --provenance` wrote beside an engine, after checking every file.

    The signature is a DSSE envelope, provenance.dsse.json, which travels with the engine. `verify` and `pull` check it
    with the public key. Needs pip install 'trtllm_lite[sign]'.

    \b
    Example:
      openssl genpkey -algorithm ed25519 -out team.key
      openssl pkey -in team.key -pubout -out team.pub
      trtllm-lite sign engine --key team.key
    """
    from pathlib import Path

    from trtllm_lite.engine.verification import sign_provenance

    key_id = sign_provenance(Path(engine), Path(key))
    click.echo(f"signed {engine} by the key {key_id}")
    click.echo(f"next: trtllm-lite verify {shlex.quote(engine)} --key PUBLIC_KEY")
