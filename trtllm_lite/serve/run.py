"""Runs the server: loads the engines, listens, and at a signal lets running requests end."""

import asyncio
import gc
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import uvloop

from trtllm_lite.errors import ArgumentError, OutputError
from trtllm_lite.llm import LLM
from trtllm_lite.serve.app import Application, Settings
from trtllm_lite.serve.http.limits import HttpLimits
from trtllm_lite.serve.http.server import HttpServer
from trtllm_lite.serve.origins import is_loopback
from trtllm_lite.serve.routes import ROUTES
from trtllm_lite.serve.served_encoder import ServedEncoder
from trtllm_lite.serve.served_engine import ModelSettings, ServedEngine
from trtllm_lite.serve.served_model import ServedModel
from trtllm_lite.serve.turns import Lanes

_CUTTING_SECONDS = 1.0  # time for requests that are being submitted, and for their error answers
_LEAST_CLOSING_SECONDS = 1.0  # time for clients to read the last answers
_OTHER_FILES = 256  # open files besides connections
_OBJECTS_BETWEEN_SEARCHES = 50_000
_SWITCH_SECONDS = 5e-4  # switch interval of Python's threads; the default is ten times as long


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The address of the server, and the seconds that running requests get when it ends (``drain_timeout``)."""

    host: str = "127.0.0.1"
    port: int = 8000
    drain_timeout: float = 30.0
    limits: HttpLimits = field(default_factory=HttpLimits)


def check_address(host: str, *, has_keys: bool, allow_no_key: bool) -> None:
    """Raise ArgumentError if other machines could use the server without a key, unless ``allow_no_key``."""
    if has_keys or allow_no_key or is_loopback(host):
        return
    raise ArgumentError(
        f"host is {host}, where other machines can use the server without a key: give --api_key_file, or say "
        "--allow_no_api_key if that is wanted"
    )


def run(
    models: Sequence[tuple[LLM, ModelSettings]],
    settings: Settings,
    options: ServerOptions,
    on_listening: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT has come and running requests have ended; a second signal cancels them.

    ``on_listening`` is called with the server's address. Raises OutputError if the address cannot be used.
    """
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(models, settings, options, on_listening))
    finally:
        gc.unfreeze()


def application(models: Sequence[tuple[LLM, ModelSettings]], settings: Settings, lanes: Lanes) -> Application:
    """The application for the running loop; requests are prepared in ``lanes``."""
    loop = asyncio.get_running_loop()
    served: list[ServedEngine] = []
    for llm, chosen in models:
        if llm.generates:
            served.append(ServedModel(llm, chosen, loop))
            chosen = chosen.of_encoder_beside()
        if llm.encoder is not None:
            served.append(ServedEncoder(llm, chosen, loop))
    return Application(served, ROUTES, settings, lanes)


async def _serve(
    models: Sequence[tuple[LLM, ModelSettings]],
    settings: Settings,
    options: ServerOptions,
    on_listening: Callable[[str], None],
) -> None:
    loop = asyncio.get_running_loop()
    with Lanes() as lanes:
        app = application(models, settings, lanes)
        server = HttpServer(app, options.limits)
        ending = _Ending(loop)
        try:
            port = await server.listen(options.host, options.port)
        except OSError as error:
            raise OutputError(
                f"cannot listen at {options.host}:{options.port} ({error}): choose another address"
            ) from error
        _allow_files(options.limits.max_connections + _OTHER_FILES)
        gc.set_threshold(_OBJECTS_BETWEEN_SEARCHES)
        sys.setswitchinterval(_SWITCH_SECONDS)
        gc.freeze()
        host = f"[{options.host}]" if ":" in options.host else options.host
        on_listening(f"http://{host}:{port}")
        await ending.asked.wait()
        app.is_draining = True
        end = loop.time() + options.drain_timeout
        await _drain(app, ending, options.drain_timeout)
        hurry = asyncio.ensure_future(ending.hurried.wait())
        closed = asyncio.ensure_future(server.close())
        left = max(end - loop.time(), _LEAST_CLOSING_SECONDS)
        await asyncio.wait([closed, hurry], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        server.abort()
        settings.access_log.close()


def _allow_files(wanted: int) -> None:
    """Raise the limit of open files of the process, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard >= 0 else wanted, hard))


async def _drain(app: Application, ending: "_Ending", timeout: float) -> None:
    """Wait for running requests, until the timeout or a second signal; then cancel them."""
    if not app.running:
        return
    print(f"ending: {len(app.running)} requests may run for {timeout:g} s more", file=sys.stderr, flush=True)
    hurry = asyncio.ensure_future(ending.hurried.wait())
    ended = asyncio.ensure_future(_all_ended(app))
    await asyncio.wait([hurry, ended], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    ended.cancel()
    left = list(app.running)
    if not left:
        return
    print(f"ending: {len(left)} requests are cut off", file=sys.stderr, flush=True)
    app.cut_off()
    await asyncio.wait(left, timeout=_CUTTING_SECONDS)
    for task in app.running:
        task.cancel()


async def _all_ended(app: Application) -> None:
    while app.running:
        await asyncio.wait(list(app.running))


class _Ending:
    """The signals that end the server: ``asked`` is set by the first, ``hurried`` by the second."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked, self.hurried = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._hear)

    def _hear(self) -> None:
        (self.hurried if self.asked.is_set() else self.asked).set()
