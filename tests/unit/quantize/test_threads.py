"""Tasks on several threads: results in order, each task once, a bounded number of tasks ahead."""

from threading import Barrier, Lock

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from trtllm_lite.quantize import threads
from trtllm_lite.quantize.threads import Once, Parts, in_order, num_workers


def test_results_come_in_order_and_tasks_run_at_once() -> None:
    meeting = Barrier(3, timeout=60)  # three tasks wait for each other, which one thread alone would do forever

    def task(number: int) -> int:
        meeting.wait()
        return number

    assert list(in_order([lambda i=i: task(i) for i in range(9)], 3)) == list(range(9))


def test_cores_are_busy_as_far_as_memory_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: range(16))
    assert [num_workers(10, available) for available in (1000, 55, 3)] == [48, 15, 3]


def test_few_results_are_kept_ahead() -> None:
    started: list[int] = []
    results = in_order([lambda i=i: started.append(i) for i in range(50)], 4)
    for taken in range(1, 50):
        next(results)
        assert max(started, default=0) < taken + 5


def test_an_error_is_raised_where_its_result_would_come() -> None:
    results = in_order([lambda: 1, lambda: 1 // 0, lambda: 3], 2)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_a_value_is_computed_once() -> None:
    meeting, count, lock = Barrier(4, timeout=60), [0], Lock()

    def compute() -> int:
        with lock:
            count[0] += 1
        return count[0]

    once = Once(compute)

    def task() -> int:
        meeting.wait()
        return once()

    assert list(in_order([task] * 4, 4)) == [1] * 4


def test_a_part_is_kept_until_it_is_taken() -> None:
    count = [0]

    def compute() -> dict[str, tuple[str, int]]:
        count[0] += 1
        return {name: (name, count[0]) for name in ("weight", "scale")}

    parts = Parts(compute)
    tasks = [lambda: parts.take("weight"), lambda: parts.take("scale")]
    assert list(in_order(tasks, 2)) == [("weight", 1), ("scale", 1)]
    assert [parts.take("scale"), parts.take("weight")] == [("scale", 2), ("weight", 2)]


def test_numpy_has_one_thread_for_each_task() -> None:
    with threadpool_limits(2, "blas"):
        before = _blas_threads()
        assert list(in_order([_blas_threads] * 4, 2)) == [[1] * len(before)] * 4
        assert set(before) == {2}
        assert _blas_threads() == before


def _blas_threads() -> list[int]:
    assert (np.eye(2) @ np.eye(2)).sum() == 2  # numpy is loaded
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
