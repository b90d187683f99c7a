"""How often large bodies are read, with a fake event loop that the test turns."""

from trtllm_lite.serve.http.reading_pace import ReadingPace


class Loop:
    """A fake event loop, which keeps calls until the next turn."""

    def __init__(self):
        self.calls = []

    def call_later(self, _, call):
        self.calls.append(call)

    def turn(self):
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Transport:
    """A transport that always has something to read."""

    def __init__(self):
        self.is_paused, self.closing = False, False

    def pause_reading(self):
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self):
        assert self.is_paused
        self.is_paused = False

    def is_closing(self):
        return self.closing


def read_all(pace, transports, clients="abcde"):
    """Let every transport read until it is paused; returns how often each has read.

    Transport i belongs to ``clients[i]``.
    """
    counts = [0] * len(transports)
    while any(not transport.is_paused for transport in transports if not transport.closing):
        for number, transport in enumerate(transports):
            if not transport.is_paused and not transport.closing:
                counts[number] += 1
                pace.note(transport, clients[number])
    return counts


def test_large_bodies_are_read_in_turn():
    loop, transports = Loop(), [Transport() for _ in range(5)]
    pace = ReadingPace(loop)
    counts = [read_all(pace, transports)]
    for _ in range(10):
        loop.turn()
        assert len(loop.calls) == 1
        counts.append(read_all(pace, transports))
    later = [sum(column) for column in zip(*counts[1:], strict=True)]
    assert max(later) - min(later) <= 2
    assert all(sum(row) == 1 for row in counts[1:])


def test_many_connections_of_a_client_read_no_more_than_one_of_another():
    loop, transports = Loop(), [Transport() for _ in range(5)]
    pace = ReadingPace(loop)
    read_all(pace, transports, "aaaab")
    counts = []
    for _ in range(12):
        loop.turn()
        counts.append(read_all(pace, transports, "aaaab"))
    assert [sum(column) for column in zip(*counts, strict=True)][4] == 6


def test_a_connection_that_is_gone_takes_no_turn():
    loop, transports = Loop(), [Transport() for _ in range(4)]
    pace = ReadingPace(loop)
    read_all(pace, transports)
    for transport in transports[:3]:
        transport.closing = True
    loop.turn()
    assert not transports[3].is_paused


def test_nothing_is_called_once_nobody_reads():
    loop, transport = Loop(), Transport()
    pace = ReadingPace(loop)
    pace.note(transport, "a")
    assert not transport.is_paused
    loop.turn()
    assert loop.calls == []
