"""Processes of stages without a cluster: children of this process, which it talks to through pipes."""

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from trtllm_lite.common.printable import one_line
from trtllm_lite.runtime.remote.engine_files import Digests
from trtllm_lite.runtime.remote.gpu_stage import GpuStage
from trtllm_lite.runtime.remote.processes import StageFailed

# Children are forks of a process that has imported the modules they need, and has opened no GPU.
_FORKED = get_context("forkserver")
_FORKED.set_forkserver_preload(["pytest", GpuStage.__module__])


class StageChildren:
    """Implements ``StageProcesses``. ``environments`` adds variables to the environment of each stage's process."""

    def __init__(self, stages: Sequence[Digests], environments: Sequence[Mapping[str, str]] | None = None) -> None:
        own = [{}] * len(stages) if environments is None else environments
        self.children = [_Child(digests, more) for digests, more in zip(stages, own, strict=True)]

    def call(self, stage: int, method: str, *arguments: Any) -> Future[Any]:
        return self.children[stage].call(False, method, arguments)

    def call_beside(self, stage: int, method: str, *arguments: Any) -> Future[Any]:
        return self.children[stage].call(True, method, arguments)

    def is_done(self, call: Future[Any]) -> bool:
        return call.done()

    def result(self, call: Future[Any], seconds: float) -> Any:
        return call.result(max(seconds, 1.0))

    def node_of(self, stage: int) -> str:
        return f"child {stage}"

    def close(self) -> None:
        for child in self.children:
            child.process.kill()
            child.process.join()


class _Child:
    def __init__(self, digests: Digests, environment: Mapping[str, str]) -> None:
        self._pipe, theirs = _FORKED.Pipe()
        everything = {**os.environ, **environment}  # the fork server's own is older
        self.process = _FORKED.Process(target=_serve, args=(theirs, digests, everything), daemon=True)
        self.process.start()
        theirs.close()
        self._lock = threading.Lock()  # guards the attributes below, and sending
        self._numbers = count()
        self._calls: dict[int, Future[Any]] = {}
        self._is_gone = False
        threading.Thread(target=self._listen, daemon=True).start()

    def call(self, is_beside: bool, method: str, arguments: Sequence[Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._calls[number] = future
            try:
                self._pipe.send((number, is_beside, method, arguments))
            except OSError:
                self._is_gone = True
        if self._is_gone:
            self._end()
        return future

    def _listen(self) -> None:
        while True:
            try:
                number, failure, value = self._pipe.recv()
            except (EOFError, OSError):
                break
            with self._lock:
                future = self._calls.pop(number)
            if failure is None:
                future.set_result(value)
            else:
                future.set_exception(StageFailed(f"failed: {one_line(failure)}"))
        self._is_gone = True
        self._end()

    def _end(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, {}
        for future in calls.values():
            future.set_exception(StageFailed("has ended: its process or its node is gone"))


def _serve(pipe: Connection, digests: Digests, environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    lock, calls = threading.Lock(), SimpleQueue[Any]()
    made: list[GpuStage] = []

    def answer(number: int, method: str, arguments: Sequence[Any]) -> None:
        failure, value = None, None
        try:
            if not made:
                made.append(GpuStage(digests))
            value = getattr(made[0], method)(*arguments)
        except Exception as error:  # noqa: BLE001 (it is raised in the other process)
            failure = str(error)
        with lock:
            pipe.send((number, failure, value))

    def answer_in_order() -> None:
        while True:
            answer(*calls.get())

    threading.Thread(target=answer_in_order, daemon=True).start()
    while True:
        try:
            number, is_beside, method, arguments = pipe.recv()
        except EOFError:
            return
        if is_beside:
            threading.Thread(target=answer, args=(number, method, arguments), daemon=True).start()
        else:
            calls.put((number, method, arguments))
