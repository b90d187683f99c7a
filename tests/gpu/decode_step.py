"""A whole decode step of a Llama-shaped model with random weights, as a chain of five kernels per layer."""

from dataclasses import dataclass, field

import torch

from tests.gpu.attention import DecodeAttention
from tests.gpu.device import Kernel
from tests.gpu.kernels import GatedLinear, GemvConfig, Linear, ModelShape, QkvLinear
from tests.gpu.row_kernels import Sample
from tests.gpu.sampling import Sampling


@dataclass(frozen=True)
class StepOptions:
    """Options of a step; configurations by kernel name override the defaults."""

    configs: dict[str, GemvConfig] = field(default_factory=dict)
    attention: dict[str, int] = field(default_factory=dict)


class DecodeStep:
    """One new token for each of ``batch`` sequences that hold ``past`` tokens already.

    ``run()`` launches the step on torch's current stream; afterwards ``tokens`` [batch] holds the greedy choices and
    ``logits`` [batch, vocab] what they were chosen from.
    """

    def __init__(self, shape: ModelShape, layers: int, batch: int, past: int, options: StepOptions) -> None:
        self.shape, self.layers, self.batch = shape, layers, batch
        bucket = 1 << (batch - 1).bit_length()
        configs = options.configs
        self.qkv = QkvLinear(shape, bucket, config=configs.get("qkv"))
        self.attention = DecodeAttention(shape, **options.attention)
        self.o = Linear(shape.hidden, shape.attention_features, bucket, residual=True, config=configs.get("o"))
        self.gate_up = GatedLinear(shape.intermediate, shape.hidden, bucket, norm=True, config=configs.get("gate_up"))
        self.down = Linear(shape.hidden, shape.intermediate, bucket, residual=True, config=configs.get("down"))
        self.head = Linear(shape.vocab, shape.hidden, bucket, norm=True, float_out=True, config=configs.get("head"))
        self.embedding = Kernel("embedding/cuda.cuh", "embedding", 128, 0, {"TL_HIDDEN": shape.hidden})
        half = shape.head_dim // 2
        slots = {"TL_PAGE": shape.page, "TL_GROUPS": 1}
        self.cache_slots = Kernel("cache_slots/cuda.cuh", "cache_slots", 128, 0, slots)
        self.rotary_table = Kernel("rotary_table/cuda.cuh", "rotary_table", half, 0, {"TL_HALF_DIM": half})
        self.sample = Sample(shape.vocab, batch)
        self._make_weights()
        self._make_buffers(past)

    def _make_weights(self) -> None:
        shape, layers = self.shape, self.layers

        def random(*extents: int) -> torch.Tensor:
            return torch.randn(*extents, device="cuda", dtype=torch.bfloat16).mul_(extents[-1] ** -0.5)

        self.weights = {
            "qkv": random(layers, shape.qkv_features, shape.hidden),
            "o": random(layers, shape.hidden, shape.attention_features),
            "gate_up": random(layers, 2, shape.intermediate, shape.hidden),
            "down": random(layers, shape.hidden, shape.intermediate),
            "head": random(shape.vocab, shape.hidden),
        }
        self.table = random(shape.vocab, shape.hidden)
        self.norms = 1 + 0.1 * torch.randn(2 * layers + 1, shape.hidden, device="cuda")

    def _make_buffers(self, past: int) -> None:
        shape, batch = self.shape, self.batch

        def empty(*extents: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.zeros(*extents, device="cuda", dtype=dtype)

        blocks = past // shape.page + 1
        cache = (self.layers, batch * blocks, shape.kv_heads, shape.page, shape.head_dim)
        self.key_cache = torch.randn(cache, device="cuda", dtype=torch.bfloat16)
        self.value_cache = torch.randn(cache, device="cuda", dtype=torch.bfloat16)
        self.block_tables = torch.randperm(batch * blocks, device="cuda").int().view(batch, blocks)
        self.past_lens = torch.full((batch,), past, device="cuda", dtype=torch.int32)
        self.cu_seqlens = torch.arange(batch + 1, device="cuda", dtype=torch.int32)
        half = shape.head_dim // 2
        self.inv_freq = 500000.0 ** -(torch.arange(half, device="cuda") / half)
        self.cos, self.sin = (empty(batch, half, dtype=torch.float32) for _ in range(2))
        self.slots = empty(batch, dtype=torch.int32)
        self.hidden = empty(batch, shape.hidden)
        self.query, self.attended = (empty(batch, shape.heads, shape.head_dim) for _ in range(2))
        self.gated = empty(batch, shape.intermediate)
        self.logits = empty(batch, shape.vocab, dtype=torch.float32)
        self.tokens = torch.arange(batch, device="cuda", dtype=torch.int32)
        self.last_tokens = self.tokens.clone()
        self.sampling = self.sample.inputs(list(range(batch)), [Sampling(temperature=0.0)] * batch)

    @property
    def num_bytes(self) -> int:
        """Bytes that a step must read: the weights and the cache."""
        return sum(tensor.numel() * 2 for tensor in (*self.weights.values(), self.key_cache, self.value_cache))

    def run(self, programmatic: bool = True) -> None:
        """Run the step; with ``programmatic`` every kernel may start before its predecessor has finished."""
        batch, linked = self.batch, {"programmatic": programmatic}
        token_slots = self.sampling["sample_slots"]
        step = (self.past_lens, token_slots, self.cu_seqlens, self.block_tables, self.last_tokens)
        bounds = (None, batch, batch, self.block_tables.shape[1])
        self.cache_slots(self.slots, self.past_lens, *step, *bounds, grid=-(-batch // 128), **linked)
        ids = (self.tokens, token_slots, self.last_tokens)
        self.embedding(self.hidden, *ids, self.table, None, len(self.table), 1.0, None, grid=batch, **linked)
        self.rotary_table(self.cos, self.sin, self.past_lens, self.inv_freq, 1.0, grid=batch, **linked)
        for layer in range(self.layers):
            self._run_layer(layer, linked)
        norm = self.norms[2 * self.layers]
        self.head(self.logits, self.hidden, self.weights["head"], norm_weight=norm, **linked)
        self.sample(self.tokens, self.logits, self.last_tokens, self.sampling, **linked)

    def _run_layer(self, layer: int, linked: dict[str, bool]) -> None:
        weights = {name: tensor[layer] for name, tensor in self.weights.items() if name != "head"}
        keys, values = self.key_cache[layer], self.value_cache[layer]
        step = {"cos": self.cos, "sin": self.sin, "slots": self.slots, "norm_weight": self.norms[2 * layer]}
        self.qkv(self.query, keys, values, self.hidden, weights["qkv"], **step, **linked)
        cached = (keys, values, self.past_lens, self.block_tables)
        self.attention(self.attended, self.query, *cached, self.slots, **linked)
        attended = self.attended.flatten(1)
        self.o(self.hidden, attended, weights["o"], residual=self.hidden, **linked)
        self.gate_up(self.gated, self.hidden, weights["gate_up"], norm_weight=self.norms[2 * layer + 1], **linked)
        self.down(self.hidden, self.gated, weights["down"], residual=self.hidden, **linked)
