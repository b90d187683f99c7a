"""Requests are prepared in a few threads, in which clients take turns; work that waits takes no thread."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trtllm_lite.serve.turns import Lane, network_of


def on_lane(scenario: Callable[[Lane], Awaitable[Any]], num_threads: int = 1) -> Any:
    async def run() -> Any:
        lane = Lane("tests", num_threads)
        try:
            return await scenario(lane)
        finally:
            lane.close()

    return asyncio.run(run())


class Gate:
    """Work that keeps its thread until the test opens the gate, so that other work waits behind it."""

    def __init__(self, lane: Lane, client: str = "first") -> None:
        self.has_begun, self._opened = threading.Event(), threading.Event()
        self.task = asyncio.ensure_future(lane.run(client, self._pass))

    def _pass(self) -> str:
        self.has_begun.set()
        assert self._opened.wait(60)
        return "passed"

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.has_begun.wait, 60)

    async def open(self) -> str:
        self._opened.set()
        return await self.task


def test_each_client_has_its_turn_however_much_another_asks_for():
    async def scenario(lane: Lane) -> list[str]:
        done: list[str] = []
        gate = Gate(lane)
        asked = ["greedy"] * 5 + ["one", "two", "one"]
        tasks = [asyncio.ensure_future(lane.run(client, lambda c=client: done.append(c))) for client in asked]
        await asyncio.sleep(0)
        await gate.open()
        await asyncio.gather(*tasks)
        return done

    assert on_lane(scenario) == ["greedy", "one", "two", "greedy", "one", "greedy", "greedy", "greedy"]


def test_who_was_served_for_the_least_time_is_next():
    now = 0.0

    def take(client: str, seconds: float) -> Callable[[], None]:
        def work() -> None:
            nonlocal now
            now += seconds
            done.append(client)

        return work

    async def run() -> None:
        lane = Lane("tests", 1, clock=lambda: now)
        first = Gate(lane)
        slow = asyncio.ensure_future(lane.run("slow", take("slow", 9)))
        second = Gate(lane, "second")
        await first.open()
        await second.begun()
        later = [asyncio.ensure_future(lane.run(client, take(client, 9))) for client in ("slow", "quick", "slow")]
        await asyncio.sleep(0)
        await second.open()
        await asyncio.gather(slow, *later)
        lane.close()

    done: list[str] = []
    asyncio.run(run())
    assert done == ["slow", "quick", "slow", "slow"]


def test_times_are_forgotten_once_nobody_waits():
    async def scenario(lane: Lane) -> None:
        await lane.run("client", lambda: None)
        assert lane._times == {}
        keeper = asyncio.ensure_future(asyncio.gather(*(lane.run(f"c{n % 100}", lambda: None) for n in range(1000))))
        await asyncio.wait([keeper])
        assert lane._times == {}

    on_lane(scenario)


def test_what_nobody_waits_for_any_more_is_not_done():
    async def scenario(lane: Lane) -> list[int]:
        done: list[int] = []
        gate = Gate(lane)
        tasks = [asyncio.ensure_future(lane.run("c", lambda n=n: done.append(n))) for n in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await gate.open()
        await asyncio.wait(tasks)
        return done

    assert on_lane(scenario) == [0, 2, 3]


def test_a_thread_whose_work_was_given_up_is_not_free_before_its_end():
    async def scenario(lane: Lane) -> None:
        gate = Gate(lane)
        await gate.begun()
        gate.task.cancel()
        done: list[int] = []
        later = asyncio.ensure_future(lane.run("c", lambda: done.append(1)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert done == []
        gate._opened.set()
        await later
        assert done == [1]

    on_lane(scenario)


def test_an_error_is_raised_where_its_work_is_waited_for():
    def fail() -> None:
        raise KeyError("x")

    async def scenario(lane: Lane) -> None:
        with pytest.raises(KeyError):
            await lane.run("c", fail)
        assert await lane.run("c", lambda: 3) == 3

    on_lane(scenario)


def test_as_many_work_as_there_are_threads():
    async def scenario(lane: Lane) -> None:
        gates = [Gate(lane, client) for client in "abc"]
        await gates[0].begun()
        await gates[1].begun()
        assert not gates[2].has_begun.is_set()
        assert [await gate.open() for gate in gates] == ["passed"] * 3

    on_lane(scenario, num_threads=2)


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:0:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("unix", "unix", True),
    ],
)
def test_a_network_of_ipv6_is_one_client(one, other, are_same):
    assert (network_of(one) == network_of(other)) == are_same
