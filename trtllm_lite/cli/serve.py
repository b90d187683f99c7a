"""``trtllm-lite serve``: an OpenAI-compatible server over one or several engines."""

import gc
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from trtllm_lite.cli.foreign_options import check_variables
from trtllm_lite.cli.framework import Command
from trtllm_lite.cli.server_options import server_options
from trtllm_lite.serve.http.limits import HttpLimits

if TYPE_CHECKING:
    from trtllm_lite.serve.opening import Opened


@click.command(cls=Command, short_help="Serve engines over HTTP, with OpenAI's API.")
@click.argument("models", metavar="[NAME=]MODEL...", nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen at; 0 for a free one.",
)
@server_options
def serve(models: tuple[str, ...], host: str, port: int, **options: Any) -> None:
    """Serve engines over HTTP, with the API of OpenAI.

    MODEL is an engine, or a model from which LLM makes an engine: a checkpoint, a Hugging Face or GGUF model. If there
    are several, requests choose one by its NAME, in their field model.

    \b
    Examples:
      trtllm-lite serve engine
      trtllm-lite serve engine --host 0.0.0.0 --api_key_file keys.txt
      trtllm-lite serve small=engine-1b large=engine-8b --port 9000
    """
    from trtllm_lite.serve.opening import logs_json, named, opened, settings_of
    from trtllm_lite.serve.run import ServerOptions, check_address, run
    from trtllm_lite.serve.standard_streams import drop_what_stderr_does_not_take

    check_variables(has_keys=options["api_key_file"] is not None)
    settings = settings_of(options, host)  # the access log waits for stderr in a thread of its own
    drop_what_stderr_does_not_take(as_json=logs_json(options))
    check_address(host, has_keys=settings.api_keys is not None, allow_no_key=options["allow_no_api_key"])
    served = ServerOptions(
        host=host,
        port=port,
        drain_timeout=options["drain_timeout"],
        limits=HttpLimits(max_body_bytes=options["max_body_size"]),
    )
    try:
        with opened(named(models), settings, options) as loaded:
            run(loaded, settings, served, partial(_say_started, loaded))
    finally:
        gc.collect()  # engines give their memory back before the interpreter ends


def _say_started(models: "Opened", address: str) -> None:
    click.echo(f"serving at {address}", err=True)
    for llm, settings in models:
        if llm.generates:
            click.echo(f"{settings.names[0]}: {llm.session.told_reuse}", err=True)
