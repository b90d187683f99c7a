"""Stand-ins for the event loop of an encoder: the embedding of a text is its first token and its length."""

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.unit.runtime.doubles import fake_manifest
from trtllm_lite.errors import LimitError, OverloadedError
from trtllm_lite.runtime.session.embedder import Embedder, EmbedderLimits
from trtllm_lite.runtime.session.embedding_pump import EmbeddingPump

SIZE = 2


@dataclass
class FakeEncoderLoop:
    """The interface of ``_core.EncoderLoop``. A poll is a step of one text, while steps are allowed."""

    num_steps_allowed: float = float("inf")
    max_requests: int = 4096
    fail: str | None = None
    broken: BaseException | None = None
    device_failed: bool = False
    closed: bool = False
    submitted: list[dict[str, Any]] = field(default_factory=list)
    waiting: dict[int, list[int]] = field(default_factory=dict)
    ends: list[Any] = field(default_factory=list)
    changed: Any = field(default_factory=threading.Condition)
    _last_id: int = 0

    def submit(self, token_ids, lengths, *, flow, priority, timeout):
        """See ``_core.EncoderLoop.submit``."""
        assert token_ids.dtype == lengths.dtype == np.int32
        with self.changed:
            if self.closed:
                raise LimitError("this model was shut down")
            if len(self.waiting) + len(lengths) > self.max_requests:
                raise OverloadedError("expected fewer texts")
            self.submitted.append({"flow": flow, "priority": priority, "timeout": timeout, "count": len(lengths)})
            ids = list(range(self._last_id + 1, self._last_id + 1 + len(lengths)))
            self._last_id += len(lengths)
            for request_id, text in zip(ids, np.split(token_ids, np.cumsum(lengths)[:-1]), strict=True):
                self.waiting[request_id] = text.tolist()
            self.changed.notify()
        return ids

    def cancel(self, request_id, reason="CANCELLED"):
        """See ``_core.Loop.cancel``."""
        with self.changed:
            if request_id not in self.waiting:
                return False
            self._end(request_id, reason)
            self.changed.notify()
        return True

    def shut_down(self, *, drain):
        """See ``_core.Loop.shut_down``."""
        assert not drain
        with self.changed:
            self.closed = True
            for request_id in list(self.waiting):
                self._end(request_id, "CANCELLED")
            self.changed.notify()

    def allow(self, num_steps: float) -> None:
        """Let a paused loop make steps."""
        with self.changed:
            self.num_steps_allowed += num_steps
            self.changed.notify()

    def poll(self, timeout):
        """See ``_core.EncoderLoop.poll``."""
        assert timeout > 0
        with self.changed:
            self.changed.wait_for(lambda: self.ends or self.closed or self.broken or self._may_step())
            if self.broken is not None:
                raise self.broken
            if self.closed and not self.ends:
                return None
            ids, rows = [], []
            if self._may_step():
                self.num_steps_allowed -= 1
                request_id, text = next(iter(self.waiting.items()))
                if self.fail is None:
                    ids, rows = [request_id], [[text[0], len(text)]]
                self._end(request_id, "END_ID" if self.fail is None else "ERROR", self.fail or "")
            ends, self.ends = self.ends, []
        return ids, np.array(rows, np.float32).reshape(-1, SIZE), ends

    def stats(self):
        """See ``_core.Loop.stats``."""
        with self.changed:
            return {"num_running": 0, "num_waiting": len(self.waiting)}

    def _may_step(self):
        return bool(self.waiting) and self.num_steps_allowed > 0

    def _end(self, request_id, reason, message=""):
        text = self.waiting.pop(request_id)
        timings = SimpleNamespace(queue_seconds=0.25, total_seconds=1.0, num_prompt_tokens=len(text))
        self.ends.append(
            SimpleNamespace(
                request_id=request_id, reason=SimpleNamespace(name=reason), message=message, timings=timings
            )
        )


def fake_embedder(**loop: Any) -> Embedder:
    """An embedder over a :class:`FakeEncoderLoop` with these fields; texts have up to 10 tokens."""
    return Embedder(
        manifest=fake_manifest(),
        limits=EmbedderLimits(max_batch_size=3, max_input_len=12, max_num_tokens=10),
        executor=None,
        pump=EmbeddingPump(FakeEncoderLoop(**loop)),
        tokenizer=None,
    )
