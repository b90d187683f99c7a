"""Reads large bodies in turn, so that small requests wait for only a few of their bytes."""

import asyncio
from collections import deque

_TURN_SECONDS = 1e-3
_READS_PER_TURN = 1
"""Reads of 64 kB in a turn: at this rate they are half of a gigabit link, and take a quarter of a core."""


class ReadingPace:
    """Bounds how often all connections together read large bodies, or bytes that are dropped after a refusal.

    A connection calls :meth:`note` after each such read, and may then be paused until its turn comes. Clients take
    turns, whatever the number of their connections.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, deque[asyncio.Transport]] = {}  # by client, in the order of turns
        self._num_left = _READS_PER_TURN
        self._is_counting = False

    def note(self, transport: asyncio.Transport, client: str) -> None:
        """Note that a client's connection has read; if the bound is reached, it waits for its turn."""
        if not self._is_counting:
            self._is_counting = True
            self._loop.call_later(_TURN_SECONDS, self._next_turn)
        if self._num_left > 0:
            self._num_left -= 1
        elif not transport.is_closing():
            transport.pause_reading()
            self._waiting.setdefault(client, deque()).append(transport)

    def _next_turn(self) -> None:
        num_resumed = 0
        while self._waiting and num_resumed < _READS_PER_TURN:
            client = next(iter(self._waiting))
            connections = self._waiting.pop(client)
            transport = connections.popleft()
            if connections:
                self._waiting[client] = connections
            if not transport.is_closing():
                transport.resume_reading()
                num_resumed += 1
        self._num_left = _READS_PER_TURN - num_resumed
        self._is_counting = num_resumed > 0
        if self._is_counting:
            self._loop.call_later(_TURN_SECONDS, self._next_turn)
