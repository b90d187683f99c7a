"""Stand-ins for the C++ event loop: deterministic logits from the token history, no weights."""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.unit.engine.samples import caches
from trtllm_lite import _testing
from trtllm_lite.engine.manifest import CacheGroup, KvCache, Limits, Manifest, Memory, Target
from trtllm_lite.engine.modules import Module, Port
from trtllm_lite.network.config import ModelConfig
from trtllm_lite.runtime.api.model_runner import ModelRunner
from trtllm_lite.runtime.session.event_pump import EventPump
from trtllm_lite.runtime.session.limits import RunnerOptions, runner_limits
from trtllm_lite.runtime.session.prefix_reuse import told_reuse
from trtllm_lite.runtime.session.session import Session
from trtllm_lite.runtime.text.tokenizer import Tokenizer

VOCAB_SIZE = 397
END_ID = 1
_UNCOUNTED = (
    *("num_blocks", "num_used_blocks", "num_free_host_blocks", "lookup_tokens", "hit_tokens", "num_late_rows"),
    *("num_recompute_preemptions", "num_swap_preemptions", "num_recomputed_tokens", "num_failed_steps"),
    *("num_scheduled_tokens", "step_seconds", "host_seconds"),
)
"""The statistics that the fake loop does not count."""


def logits_after(history: Sequence[int], vocab_size: int = VOCAB_SIZE) -> np.ndarray:
    """float32[vocab] that depends on every token of the history and its order."""
    digest = hashlib.blake2b(np.asarray(history, np.int32).tobytes(), digest_size=8).digest()
    generator = np.random.default_rng(int.from_bytes(digest, "little"))
    return generator.standard_normal(vocab_size).astype(np.float32) * 3


@dataclass
class _Running:
    request_id: int
    tokens: list[int]
    num_prompt: int
    params: Any
    context_logits: bool
    generation_logits: bool
    options: dict[str, Any]

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt


@dataclass
class FakeEventLoop:
    """The interface of ``_core.EventLoop``. A poll is a step: a token for each of up to ``max_batch_size`` requests."""

    max_batch_size: int
    num_submitted: int = 0
    num_generated: int = 0
    num_steps: int = 0
    drafts: tuple[int, list[int], list[int]] = (0, [], [])
    running: list[_Running] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    fail: str | None = None
    broken: BaseException | None = None
    num_steps_allowed: float = float("inf")
    closed: bool = False
    changed: Any = field(default_factory=threading.Condition)

    def submit(self, prompt_ids, params, *, context_logits=False, generation_logits=False, **options):
        """See ``_core.EventLoop.submit``."""
        assert prompt_ids.dtype == np.int32
        assert prompt_ids.ndim == 1
        tokens = prompt_ids.tolist()
        with self.changed:
            self.num_submitted += 1
            request = _Running(
                self.num_submitted, tokens, len(tokens), params, context_logits, generation_logits, options
            )
            self.running.append(request)
            self.changed.notify()
        return request.request_id

    def hold(self):
        """See ``_core.Loop.hold``; steps wait for no request here."""

    def release(self):
        """See ``_core.Loop.release``."""

    def cancel(self, request_id):
        """See ``_core.EventLoop.cancel``."""
        with self.changed:
            for request in list(self.running):
                if request.request_id == request_id:
                    self._end(request, "CANCELLED")
            self.changed.notify()
            return any(end.request_id == request_id for end in self.ends)

    def shut_down(self, *, drain):
        """See ``_core.EventLoop.shut_down``."""
        assert not drain
        with self.changed:
            self.closed = True
            for request in list(self.running):
                self._end(request, "CANCELLED")
            self.changed.notify()

    def step(self):
        """Let a paused loop make one step."""
        with self.changed:
            self.num_steps_allowed += 1
            self.changed.notify()

    def poll(self, timeout):
        """See ``_core.EventLoop.poll``."""
        assert timeout > 0
        with self.changed:
            self.changed.wait_for(lambda: self.ends or self.closed or self._may_step())
            if self.broken is not None:
                raise self.broken
            if self.closed and not self.ends:
                return None
            tokens = []
            if self._may_step():
                self.num_steps_allowed -= 1
                self.num_steps += 1
                tokens = [self._advance(request) for request in self.running[: self.max_batch_size] if not self.fail]
                self.num_generated += len(tokens)
            for request in self.running if self.fail else ():
                self._end(request, "ERROR", self.fail)
            ends, self.ends = self.ends, []
        return tokens, ends

    def stats(self):
        """See ``_core.EventLoop.stats``."""
        with self.changed:
            num_running = min(len(self.running), self.max_batch_size)
            counts = dict.fromkeys(_UNCOUNTED, 0)
            counts.update(num_running=num_running, num_waiting=len(self.running) - num_running)
            counts.update(num_generated_tokens=self.num_generated, num_steps=self.num_steps, decode_host_times={})
            counts["num_drafts"], counts["num_drafted"], counts["num_accepted"] = self.drafts
        return counts

    def _may_step(self):
        return bool(self.running) and self.num_steps_allowed > 0

    def _end(self, request, reason, message=""):
        self.running = [entry for entry in self.running if entry is not request]
        timings = SimpleNamespace(
            queue_seconds=0.25,
            first_token_seconds=0.5,
            seconds_per_token=0.125,
            total_seconds=1.0,
            num_prompt_tokens=request.num_prompt,
            num_cached_tokens=0,
            num_generated_tokens=request.num_generated,
            num_preemptions=0,
        )
        reason = SimpleNamespace(name=reason)
        self.ends.append(
            SimpleNamespace(request_id=request.request_id, reason=reason, message=message, timings=timings)
        )

    def _advance(self, request):
        logits = logits_after(request.tokens)
        sampler = _testing.Sampler(1, VOCAB_SIZE)
        prompt, generated = request.tokens[: request.num_prompt], request.tokens[request.num_prompt :]
        sampler.set_slot(0, request.params, prompt, generated, request.options["sequence_index"])
        sampled = sampler.sample_rows([0], logits[None])[0]
        context = None
        if request.context_logits and not generated:
            context = np.stack([logits_after(prompt[: i + 1]) for i in range(len(prompt))])
        request.tokens.append(sampled.token)
        reason = _testing.finish_reason(
            request.params, prompt, [*generated, sampled.token], request.options["stop_sequences"]
        )
        if reason is not None:
            self._end(request, reason.name)
        return SimpleNamespace(
            request_id=request.request_id,
            tokens=[sampled.token],
            index=request.num_generated - 1,
            has_outputs=True,
            context_logits=context,
            generation_logits=logits[None] if request.generation_logits else None,
            logprobs=[] if sampled.logprobs is None else [sampled.logprobs],
            prompt_logprobs=[],
            hypotheses=[],
        )


def fake_manifest(**changes) -> Manifest:
    """A manifest; ``changes`` replace its parts. Limits: batch 4, 24 prompt tokens, 40 tokens in all, 16 per step."""
    tokens_per_block = changes.pop("tokens_per_block", 4)
    num_blocks = changes.pop("num_blocks", 4 * -(-40 // tokens_per_block))
    generation = changes.pop("generation", {})
    limits = {"max_batch_size": 4, "max_input_len": 24, "max_seq_len": 40, "max_num_tokens": 16, "max_draft_len": 0}
    limits.update({name: changes.pop(name) for name in list(changes) if name in limits})
    limits["max_beam_width"] = changes.pop("max_beam_width", limits["max_batch_size"])
    model = ModelConfig(
        producer="trtllm_lite test",
        architecture="LlamaForCausalLM",
        family="llama",
        dtype="float32",
        vocab_size=VOCAB_SIZE,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=128,
        eos_token_ids=[END_ID],
        bos_token_id=0,
        pad_token_id=2,
        generation=generation,
    )
    gather = changes.pop("gather_context_logits", False)
    assert not changes, changes
    return Manifest(
        producer="trtllm_lite test",
        target=Target("cpu"),
        model=model,
        modules=(
            Module("decoder", "decoder", (), (Port("logits", "float32", ("num_logits", VOCAB_SIZE)),), ("full",)),
        ),
        limits=Limits(**limits),
        kv_cache=KvCache(
            *(tokens_per_block, num_blocks, 64 * tokens_per_block),
            groups=(CacheGroup("full", "full", 0, caches((1, 8), "float32")),),
        ),
        gather_context_logits=gather,
        files={},
        memory=Memory(0, 0, 0),
        fusions=(),
        num_parameters=0,
    )


def fake_session(options: RunnerOptions | None = None, tokenizer: Tokenizer | None = None, **changes) -> Session:
    """A session over a :class:`FakeEventLoop` and the real sampler."""
    manifest = fake_manifest(**changes)
    options = options or RunnerOptions()
    limits = runner_limits(manifest, options, 1 << 40)
    return Session(
        manifest=manifest,
        limits=limits,
        executor=SimpleNamespace(expert_counts=list),
        pump=EventPump(FakeEventLoop(limits.max_batch_size)),
        told_reuse=told_reuse(manifest, options),
        tokenizer=tokenizer,
    )


def fake_runner(options: RunnerOptions | None = None, tokenizer: Tokenizer | None = None, **changes) -> ModelRunner:
    """A runner over :func:`fake_session`."""
    return ModelRunner(fake_session(options, tokenizer, **changes))


def greedy_continuation(prompt: Sequence[int], count: int, end_id: int = -1) -> list[int]:
    """What the fake model generates after ``prompt``, up to ``count`` tokens or the end id (included)."""
    history = list(prompt)
    for _ in range(count):
        history.append(int(logits_after(history).argmax()))
        if history[-1] == end_id:
            break
    return history[len(prompt) :]
