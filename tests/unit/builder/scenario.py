"""Random steps over several sequences, fed to networks at any stage of the pipeline, and their results side by side."""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from tests.unit.builder.interpreter import run
from tests.unit.builder.networks import Shape

Feeds = dict[str, np.ndarray]


@dataclass
class Sequences:
    """The state of a batch: tokens in the cache, contiguous caches, and paged caches with shuffled blocks."""

    shape: Shape
    num_seqs: int
    seed: int = 0
    tokens_per_block: int = 4
    num_blocks: int = 21  # more than the sequences need
    num_groups: int = 1  # one block table per sequence and group
    caches: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        s = self.shape
        self.random = np.random.default_rng(self.seed)
        self.past_lens = np.zeros(self.num_seqs, np.int64)
        blocks = -(-s.max_seq // self.tokens_per_block)
        num_tables = self.num_seqs * self.num_groups
        tables = self.random.permutation(self.num_blocks)[: num_tables * blocks]
        self.block_tables = tables.reshape(num_tables, blocks).astype(np.int32)
        for layer in range(s.layers):
            heads, head_dim = s.kv_heads_of(layer), s.head_dim_of(layer)
            first, second = ("rotary", "latent") if s.value_dim else ("key", "value")
            shapes = {
                f"past_{first}": (self.num_seqs, heads, s.max_seq, head_dim),
                f"past_{second}": (self.num_seqs, heads, s.max_seq, s.value_dim or head_dim),
                "key_cache": (self.num_blocks, heads, head_dim, self.tokens_per_block),
                "value_cache": (self.num_blocks, heads, self.tokens_per_block, head_dim),
            }
            # The old content of a slot must never matter. It is not NaN, which would spoil masked values, too.
            self.caches |= {f"{name}.{layer}": np.full(size, 1e3, np.float32) for name, size in shapes.items()}

    def step(self, models: list[ir.Model], lens: list[int], feeds: Feeds | None = None) -> list[np.ndarray]:
        """Append ``lens[b]`` random tokens to each sequence; returns each model's logits of every last token.

        The first model advances the contiguous caches, the last model the paged caches.
        """
        feeds = (feeds or self.feeds(lens)) | self.caches
        logits = []
        for model in models:
            form = "packed" if any(value.name == "token_ids" for value in model.graph.inputs) else "padded"
            outputs = run(model, feeds | {name: feeds[f"{name}.{form}"] for name in ("position_ids", "past_lens")})
            logits.append(self._last_rows(outputs["logits"], lens))
            self._keep(outputs)
        self.past_lens += lens
        return logits

    def feeds(self, lengths: list[int]) -> Feeds:
        """Inputs of a step of random tokens, for every form of the network."""
        lens = np.array(lengths)
        longest, slot = int(lens.max()), np.arange(int(lens.max()))
        real = slot < lens[:, None]
        ids = self.random.integers(0, self.shape.vocab, real.shape)
        positions = self.past_lens[:, None] + slot
        ends = np.cumsum(lens)
        padded_rows = np.where(real, (ends - lens)[:, None] + slot, 0)
        return {
            "input_ids": np.where(real, ids, 0),
            "position_ids.padded": positions,
            "token_ids": ids[real].astype(np.int32),
            "position_ids.packed": positions[real].astype(np.int32),
            "past_lens.padded": self.past_lens,
            "past_lens.packed": self.past_lens.astype(np.int32),
            "padded_rows": padded_rows,
            "packed_rows": (np.arange(len(lens))[:, None] * longest + slot)[real],
            "cu_seqlens": np.concatenate([[0], ends]).astype(np.int32),
            "block_tables": self.block_tables,
            "logits_indices": (ends - 1).astype(np.int32),
        }

    def _last_rows(self, logits: np.ndarray, lens: list[int]) -> np.ndarray:
        """The last row of each sequence, from [batch, seq, vocab], packed [num_tokens, vocab], or gathered rows."""
        if logits.ndim == 3:
            return logits[np.arange(len(lens)), np.array(lens) - 1]
        return logits if len(logits) == len(lens) else logits[np.cumsum(lens) - 1]

    def _keep(self, outputs: dict[str, np.ndarray]) -> None:
        for name, value in outputs.items():
            if name.startswith("present_") or "_out." in name:
                self.caches[name.replace("present_", "past_").replace("_out", "")] = value
