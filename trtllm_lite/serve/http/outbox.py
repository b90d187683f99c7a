"""Sends what many connections write at about the same time."""

import asyncio

from trtllm_lite.runtime.core import core


class Outbox:
    """Gathers what is written in one turn of the loop, and sends it by one call without the interpreter's lock.

    Sending to a client takes longer than all that Python does for a token; meanwhile other threads go on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Outlet] = []

    def add(self, outlet: "Outlet") -> None:
        """Send what ``outlet`` holds when the loop comes around."""
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
    """What is written to one connection. What its socket does not take at once goes to the transport, which sends it
    later and tells the connection when its client is behind."""

    __slots__ = ("_outbox", "_transport", "data", "socket")

    def __init__(self, outbox: Outbox, transport: asyncio.Transport) -> None:
        self._outbox = outbox
        self._transport = transport
        self.socket: int = transport.get_extra_info("socket").fileno()
        self.data = b""

    def write(self, data: bytes) -> None:
        """Send ``data`` when the loop comes around, behind what was written before."""
        if not self.data:
            self._outbox.add(self)
        self.data += data

    def flush(self) -> None:
        """Leave nothing to the next turn of the loop."""
        if self.data:
            self._outbox.flush()

    def is_ready(self) -> bool:
        """Whether the socket may be sent to: it is open, and the transport holds nothing that comes before."""
        return not self._transport.is_closing() and not self._transport.get_write_buffer_size()

    def hand_over(self) -> None:
        """Leave what was not sent to the transport, or to nobody if the connection is gone."""
        data, self.data = self.data, b""
        if data and not self._transport.is_closing():
            self._transport.write(data)
