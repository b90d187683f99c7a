"""Stand-ins for the event loop of an encoder: the embedding of a text is its first token and its length."""

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.unit.runtime.doubles import fake_manifest
from trtllm_lite import _core
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
            first = self._last_id + 1
            self._last_id += len(lengths)
            for number, text in enumerate(np.split(token_ids, np.cumsum(lengths)[:-1])):
                self.waiting[first + number] = text.tolist()
            self.changed.notify()
        return first

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
            if self._may_step():
                self.num_steps_allowed -= 1
                self._end(next(iter(self.waiting)), "END_ID" if self.fail is None else "ERROR", self.fail or "")
            ends, self.ends = self.ends, []
        texts = [(text[0], len(text)) for _, reason, text, _ in ends if reason == "END_ID"]
        return (
            np.array([request_id for request_id, *_ in ends], np.int64),
            np.array([_core.FinishReason[reason].value for _, reason, *_ in ends], np.uint8),
            np.array([len(text) for _, _, text, _ in ends], np.int32),
            np.array([[0.25, 1.0]] * len(ends)).reshape(-1, 2),
            np.array(texts, np.float32).reshape(-1, SIZE),
            {request_id: message for request_id, reason, _, message in ends if reason == "ERROR"},
        )

    def stats(self):
        """See ``_core.Loop.stats``."""
        with self.changed:
            return {"num_running": 0, "num_waiting": len(self.waiting)}

    def _may_step(self):
        return bool(self.waiting) and self.num_steps_allowed > 0

    def _end(self, request_id, reason, message=""):
        self.ends.append((request_id, reason, self.waiting.pop(request_id), message))


def fake_embedder(**loop: Any) -> Embedder:
    """An embedder over a :class:`FakeEncoderLoop` with these fields; texts have up to 10 tokens."""
    return Embedder(
        manifest=fake_manifest(),
        limits=EmbedderLimits(max_batch_size=3, max_input_len=12, max_num_tokens=10),
        executor=None,
        pump=EmbeddingPump(FakeEncoderLoop(**loop)),
        tokenizer=None,
    )
