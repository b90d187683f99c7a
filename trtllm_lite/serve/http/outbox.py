"""Sends together what many connections write at about the same time."""

import asyncio

from trtllm_lite.runtime.core import core


class Outbox:
    """Gathers the writes of one iteration of the loop, and sends them by one call without the interpreter's lock.

    Sending to a client takes longer than Python's work for a token; meanwhile other threads can run.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Outlet] = []

    def add(self, outlet: "Outlet") -> None:
        """Send the bytes of ``outlet`` in the next iteration of the loop."""
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(outlet)

    def flush(self) -> None:
        """Send everything now."""
        waiting, self._waiting = self._waiting, []
        ready = [outlet for outlet in waiting if outlet.is_ready()]
        data = [outlet.data for outlet in ready]
        sent = core().send_each([outlet.socket for outlet in ready], data)
        for outlet, part, num_sent in zip(ready, data, sent, strict=True):
            outlet.data = b"" if num_sent == len(part) else part[num_sent:]
        for outlet in waiting:
            outlet.hand_over()


class Outlet:
    """The bytes to write to one connection; the transport sends those that the socket does not take at once."""

    __slots__ = ("_outbox", "_transport", "data", "socket")

    def __init__(self, outbox: Outbox, transport: asyncio.Transport) -> None:
        self._outbox = outbox
        self._transport = transport
        self.socket: int = transport.get_extra_info("socket").fileno()
        self.data = b""

    def write(self, data: bytes) -> None:
        """Send ``data`` in the next iteration of the loop, after earlier writes."""
        if not self.data:
            self._outbox.add(self)
        self.data += data

    def flush(self) -> None:
        """Send all bytes now."""
        if self.data:
            self._outbox.flush()

    def is_ready(self) -> bool:
        """Whether bytes may be sent to the socket: it is open, and the transport holds no earlier bytes."""
        return not self._transport.is_closing() and not self._transport.get_write_buffer_size()

    def hand_over(self) -> None:
        """Leave unsent bytes to the transport, or drop them if the connection is gone."""
        data, self.data = self.data, b""
        if data and not self._transport.is_closing():
            self._transport.write(data)
