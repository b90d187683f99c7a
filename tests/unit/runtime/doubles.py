"""Stand-ins for the C++ executor: deterministic logits from the token history, no weights.

The fake keeps tokens in a paged cache and reads the history back through the block tables, so a wrong table, position
or chunk changes what it answers.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trtllm_lite import _core
from trtllm_lite.engine.manifest import KvCache, Limits, Manifest, Memory, Target
from trtllm_lite.network.config import ModelConfig
from trtllm_lite.runtime.limits import RunnerOptions, runner_limits
from trtllm_lite.runtime.model_runner import ModelRunner
from trtllm_lite.runtime.session import Session
from trtllm_lite.runtime.tokenizer import Tokenizer

VOCAB_SIZE = 397
END_ID = 1
UNWRITTEN = -1


def logits_after(history: Sequence[int], vocab_size: int = VOCAB_SIZE) -> np.ndarray:
    """float32[vocab] that depends on every token of the history and its order."""
    digest = hashlib.blake2b(np.asarray(history, np.int32).tobytes(), digest_size=8).digest()
    generator = np.random.default_rng(int.from_bytes(digest, "little"))
    return generator.standard_normal(vocab_size).astype(np.float32) * 3


@dataclass
class FakeExecutor:
    """The interface of ``_core.Executor``; ``steps`` records (seq_lens, past_lens) of each step."""

    limits: Limits
    num_blocks: int
    tokens_per_block: int
    steps: list[tuple[list[int], list[int]]] = field(default_factory=list)
    fail_at_step: int | None = None

    def __post_init__(self) -> None:
        self.cache = np.full((self.num_blocks, self.tokens_per_block), UNWRITTEN, np.int32)

    def step(self, token_ids, seq_lens, past_lens, block_tables, logits_indices):
        """See ``_core.Executor.step``."""
        assert all(array.dtype == np.int32 for array in (token_ids, seq_lens, past_lens, block_tables, logits_indices))
        assert len(token_ids) == seq_lens.sum() <= self.limits.max_num_tokens
        assert (seq_lens >= 1).all()
        assert len(seq_lens) <= self.limits.max_batch_size
        if self.fail_at_step == len(self.steps):
            raise RuntimeError("the device is on fire")
        self.steps.append((seq_lens.tolist(), past_lens.tolist()))
        rows = []
        start = 0
        for length, past, table in zip(seq_lens, past_lens, block_tables, strict=True):
            for position in range(past, past + length):
                block, slot = table[position // self.tokens_per_block], position % self.tokens_per_block
                self.cache[block, slot] = token_ids[start + position - past]
                history = self.cache[table].reshape(-1)[: position + 1]
                assert UNWRITTEN not in history
                rows.append(history.copy())
            start += length
        wanted = [logits_after(rows[index]) for index in logits_indices]
        return np.stack(wanted) if wanted else np.zeros((0, VOCAB_SIZE), np.float32)


def fake_manifest(**changes) -> Manifest:
    """A manifest of limits 4 sequences, 24 prompt tokens, 40 tokens, 16 per step; ``changes`` replace its parts."""
    tokens_per_block = changes.pop("tokens_per_block", 4)
    num_blocks = changes.pop("num_blocks", 4 * -(-40 // tokens_per_block))
    generation = changes.pop("generation", {})
    limits = {"max_batch_size": 4, "max_input_len": 24, "max_seq_len": 40, "max_num_tokens": 16}
    limits.update({name: changes.pop(name) for name in list(changes) if name in limits})
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
        limits=Limits(**limits),
        kv_cache=KvCache(tokens_per_block, num_blocks, 1, 1, 8, "float32", 64 * tokens_per_block),
        gather_context_logits=gather,
        files={},
        memory=Memory(0, 0, 0),
        fusions=(),
    )


def fake_session(options: RunnerOptions | None = None, tokenizer: Tokenizer | None = None, **changes) -> Session:
    """A session over a :class:`FakeExecutor` and the real block manager and sampler."""
    manifest = fake_manifest(**changes)
    limits = runner_limits(manifest.limits, manifest.kv_cache, options or RunnerOptions(), 1 << 40)
    return Session(
        manifest=manifest,
        limits=limits,
        executor=FakeExecutor(manifest.limits, limits.num_blocks, limits.tokens_per_block),
        blocks=_core.BlockManager(limits.num_blocks, limits.tokens_per_block),
        sample=_core.sample,
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
