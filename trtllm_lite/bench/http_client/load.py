"""Sends the requests of one process at their times, and collects the outcomes."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from trtllm_lite.bench.http_client.answer import Answer, read_answer
from trtllm_lite.bench.http_client.client import Client
from trtllm_lite.errors import ServerError


@dataclass(frozen=True)
class Asked:
    """A request that is ready to be sent: its bytes, ``arrival_s`` in seconds after the load begins, and its ``row``.

    ``output_len`` is the exact number of tokens expected; None if the server may make fewer. With ``stream`` the
    response is a stream.
    """

    row: int
    arrival_s: float
    request: bytes
    stream: bool
    output_len: int | None = None


@dataclass(frozen=True)
class Failure:
    """The reason why a request failed; failures of one ``kind`` are counted together."""

    kind: str
    message: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of the request in position ``row``. Times are those of ``perf_counter``."""

    row: int
    sent_s: float
    result: Answer | Failure


async def run_load(
    client: Client,
    asked: Sequence[Asked],
    begin: float,
    concurrency: int | None = None,
    on_finished: Callable[[], None] | None = None,
) -> list[Outcome]:
    """Send ``asked`` (sorted by arrival) from the instant ``begin`` on, at most ``concurrency`` outstanding at a time.

    Latencies count from the time at which a request may be sent; they include the opening of a connection if none is
    idle. The outcomes are in the order in which the requests ended.
    """
    places = asyncio.Semaphore(concurrency or len(asked) or 1)
    outcomes: list[Outcome] = []

    async def send(request: Asked) -> None:
        outcomes.append(await _outcome(client, request))
        places.release()
        if on_finished is not None:
            on_finished()

    async with asyncio.TaskGroup() as group:
        for request in asked:
            while (early := begin + request.arrival_s - perf_counter()) > 0:  # uvloop may wake a little early
                await asyncio.sleep(early)
            await places.acquire()
            group.create_task(send(request))
    return outcomes


async def _outcome(client: Client, asked: Asked) -> Outcome:
    sent = perf_counter()
    try:
        answer = read_answer(await client.ask(asked.request), asked.stream)
        if asked.output_len is not None and answer.num_tokens != asked.output_len:
            raise ServerError(
                f"the server made {answer.num_tokens} tokens instead of {asked.output_len}: it does not support "
                "ignore_eos (pass --no-ignore_eos), or has lower limits",
                "another output length",
            )
    except ServerError as error:
        return Outcome(asked.row, sent, Failure(error.kind, str(error)))
    return Outcome(asked.row, sent, answer)
