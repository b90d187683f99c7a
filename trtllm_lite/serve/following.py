"""Follows the generations that answer a request, step by step, until they end or the client goes away."""

import asyncio
from collections.abc import Callable, Sequence
from copy import copy

from trtllm_lite.runtime.api.generation import Generation
from trtllm_lite.runtime.session.request import Response
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.serve.http.messages import Exchange
from trtllm_lite.serve.served_model import ServedModel

OnNews = Callable[[int, list[Response], RequestHandle], None]
"""Takes the new part of choice number i: the responses, and the handle, which has ended if these are its last."""


async def until_ended(model: ServedModel, generations: Sequence[Generation]) -> None:
    """Wait for the ends of all generations; if this coroutine is cancelled, they are cancelled as well."""
    await _Following(model, generations, None, None).wait()


async def stream(model: ServedModel, generations: Sequence[Generation], on_news: OnNews, connection: Exchange) -> None:
    """Call ``on_news`` whenever a choice has something new and the client reads what it is sent, until all have ended.

    Choices are numbered across the sequences of all generations. Raises the error that ended a generation, or the error
    of ``on_news``; the other generations are cancelled then, and if this coroutine is cancelled.
    """
    await _Following(model, generations, on_news, connection).wait()


class _Following:
    def __init__(
        self,
        model: ServedModel,
        generations: Sequence[Generation],
        on_news: OnNews | None,
        connection: Exchange | None,
    ) -> None:
        self._model = model
        self._handles = [handle for generation in generations for handle in generation.handles]
        self._numbers = {handle: number for number, handle in enumerate(self._handles)}
        self._num_taken = [0] * len(self._handles)
        self._running = set(self._handles)
        self._on_news = on_news
        self._connection = connection
        self._ended: asyncio.Future[None] = model.loop.create_future()

    def interrupt(self, error: Exception) -> None:
        """End with an error, even if generations still run."""
        if not self._ended.done():
            self._ended.set_exception(error)

    async def wait(self) -> None:
        listener = self._check_end if self._on_news is None else self._take_news
        if self._connection is not None:
            self._connection.on_resume = self._resume
        self._model.waiting.add(self.interrupt)
        try:
            for handle in self._handles:
                self._model.listen(handle, listener)
            await self._ended
        finally:
            self._model.waiting.discard(self.interrupt)
            for handle in self._handles:
                self._model.forget(handle)
            for handle in self._running:
                handle.cancel()
            if self._connection is not None:
                self._connection.on_resume = None

    def _check_end(self, handle: RequestHandle) -> None:
        if handle.ended:
            self._end(handle, None)

    def _take_news(self, handle: RequestHandle) -> None:
        connection, on_news = self._connection, self._on_news
        assert connection is not None
        assert on_news is not None
        if connection.paused or handle not in self._running:
            return
        ended = handle.ended  # read before the responses: a request that has ended has all of them
        number, responses = self._numbers[handle], handle.responses
        first = self._num_taken[number]
        news = responses[first:]  # read once, because the pump's thread adds to them
        if not news and not ended:
            return
        self._num_taken[number] = first + len(news)
        try:
            if ended and handle.error is not None:
                raise copy(handle.error)  # a traceback in the kept error would keep the session alive
            on_news(number, news, handle)
        except Exception as error:  # noqa: BLE001 - any error ends this request only
            self._end(handle, error)
            return
        if ended:
            self._end(handle, None)

    def _resume(self) -> None:
        for handle in self._handles:
            self._take_news(handle)

    def _end(self, handle: RequestHandle, error: Exception | None) -> None:
        self._running.discard(handle)
        if self._ended.done():
            return
        if error is not None:
            self._ended.set_exception(error)
        elif not self._running:
            self._ended.set_result(None)
