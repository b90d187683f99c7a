"""Counts the events of a stream as its bytes come: server-sent events (WHATWG HTML, section 9.2)."""

from array import array
from collections import deque

_NUM_FIRST = 2
_NUM_LAST = 4
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")


class EventStream:
    """Records when the events of one stream came, and the data of the first and the last few.

    Events in between are not parsed, because a client that parsed each would be slower than the servers it measures.
    Lines end with LF or CR LF. ``times_s`` has, for each event with data, the instant of the bytes that ended it.
    """

    def __init__(self) -> None:
        self.times_s = array("d")
        self._first: list[bytes] = []
        self._last: deque[bytes] = deque(maxlen=_NUM_LAST)
        self._line = b""  # the beginning of an incomplete line
        self._data: list[bytes] = []  # lines of the incomplete event
        self._plain = False  # whether the next piece may be a whole event that is only counted

    def take(self, piece: bytes, now: float) -> None:
        """Count the events that end within ``piece``, the next bytes of the body, which came at ``now``."""
        if self._plain and piece[:5] == b"data:" and piece.endswith(_EVENT_ENDS) and piece.count(b"\n") == 2:
            self.times_s.append(now)
            self._last.append(piece)
        else:
            self._take_lines(piece, now)

    def end(self, now: float) -> None:
        """End the body; an event without its blank line counts."""
        self._take_lines(b"\n\n", now)

    @property
    def first(self) -> list[bytes]:
        """The data of the first events, at most two."""
        return [_data_of(event) for event in self._first]

    @property
    def last(self) -> list[bytes]:
        """The data of the last events, at most four, in the order in which they came."""
        return [_data_of(event) for event in self._last]

    def _take_lines(self, piece: bytes, now: float) -> None:
        *lines, self._line = (self._line + piece).split(b"\n")
        for line in lines:
            content = line.removesuffix(b"\r")
            if content.startswith(b"data:"):
                self._data.append(content)
            elif not content and self._data:
                self._end_event(now)
        self._plain = len(self._first) == _NUM_FIRST and not self._line and not self._data

    def _end_event(self, now: float) -> None:
        event = b"\n".join(self._data)
        self._data = []
        self.times_s.append(now)
        self._last.append(event)
        if len(self._first) < _NUM_FIRST:
            self._first.append(event)


def _data_of(event: bytes) -> bytes:
    return b"\n".join(line[5:].strip() for line in event.strip().split(b"\n"))
