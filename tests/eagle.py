"""A tiny random EAGLE-3 head in the published layout, and the head in torch as in the paper (arXiv 2503.01840)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn.functional import linear, rms_norm, silu
from transformers import PreTrainedModel

from tests.models import VOCAB_SIZE


@dataclass(frozen=True)
class HeadShape:
    """The extents of a head."""

    hidden: int
    wide: int
    heads: int
    kv_heads: int
    head_dim: int

    def of_model(self) -> dict[str, int]:
        """The config of the model that the head drafts for."""
        sizes = {"hidden_size": self.hidden, "intermediate_size": self.wide, "head_dim": self.head_dim}
        return {**sizes, "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads}


ODD, FOR_GPU = HeadShape(60, 91, 6, 2, 10), HeadShape(64, 96, 4, 2, 16)
NUM_LAYERS, LAYERS = 6, (1, 3, 5)  # number of the model's layers, and those whose inputs are features
NUM_KNOWN = 101  # tokens that the head has logits for
EPSILON, THETA = 1e-5, 10000.0

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    **ODD.of_model(),
    "num_hidden_layers": 1,
    "vocab_size": VOCAB_SIZE,
    "draft_vocab_size": NUM_KNOWN,
    "max_position_embeddings": 128,
    "rms_norm_eps": EPSILON,
    "rope_theta": THETA,
    "hidden_act": "silu",
    "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": list(LAYERS)},
}


def save_tiny_head(
    directory: Path, seed: int = 1, shape: HeadShape = ODD, dtype: torch.dtype = torch.float32, **config: Any
) -> dict[str, torch.Tensor]:
    """Write a head without an embedding; returns its tensors, rounded to ``dtype``, as float32."""
    generator, hidden, dim = torch.Generator().manual_seed(seed), shape.hidden, shape.head_dim

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * 1.5 / columns**0.5).to(dtype)

    def norm() -> torch.Tensor:
        return (1 + 0.2 * torch.randn(hidden, generator=generator)).to(dtype)

    known = torch.randperm(VOCAB_SIZE, generator=generator)[:NUM_KNOWN].sort().values
    is_known = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
    is_known[known] = True
    tensors = {
        "fc.weight": matrix(hidden, 3 * hidden),
        "midlayer.self_attn.q_proj.weight": matrix(shape.heads * dim, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": matrix(shape.kv_heads * dim, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": matrix(shape.kv_heads * dim, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": matrix(hidden, shape.heads * dim),
        "midlayer.mlp.gate_proj.weight": matrix(shape.wide, hidden),
        "midlayer.mlp.up_proj.weight": matrix(shape.wide, hidden),
        "midlayer.mlp.down_proj.weight": matrix(hidden, shape.wide),
        "midlayer.input_layernorm.weight": norm(),
        "midlayer.hidden_norm.weight": norm(),
        "midlayer.post_attention_layernorm.weight": norm(),
        "norm.weight": norm(),
        "lm_head.weight": matrix(NUM_KNOWN, hidden),
        "d2t": known - torch.arange(NUM_KNOWN),
        "t2d": is_known,
    }
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**CONFIG, **shape.of_model(), **config}))
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


@dataclass(frozen=True)
class TorchHead:
    """The head of ``tensors`` for ``model``, on whole sequences without a cache."""

    tensors: dict[str, torch.Tensor]
    model: PreTrainedModel
    norm_before_residual: bool = False
    shape: HeadShape = ODD

    @property
    def known(self) -> torch.Tensor:
        """The tokens that the head has logits for."""
        return self.tensors["d2t"] + torch.arange(NUM_KNOWN)

    def features(self, tokens: list[int]) -> torch.Tensor:
        """The model's features of each token, [tokens, hidden]."""
        with torch.no_grad():
            states = self.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        return linear(torch.cat([states[layer][0] for layer in LAYERS], -1), self.tensors["fc.weight"])

    def hidden(self, features: torch.Tensor, next_tokens: list[int]) -> torch.Tensor:
        """The states before the last norm, from each token's features and the token after it, [tokens, hidden]."""
        embedded = self.model.get_input_embeddings().weight.detach()[next_tokens]
        normed = self._norm(features, "midlayer.hidden_norm")
        mixed = self._attend(torch.cat([self._norm(embedded, "midlayer.input_layernorm"), normed], -1))
        hidden = (normed if self.norm_before_residual else features) + mixed
        x = self._norm(hidden, "midlayer.post_attention_layernorm")
        gated = silu(self._linear(x, "mlp.gate_proj")) * self._linear(x, "mlp.up_proj")
        return hidden + self._linear(gated, "mlp.down_proj")

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits, [tokens, known]."""
        return linear(self._norm(hidden, "norm"), self.tensors["lm_head.weight"])

    def drafts(self, features: torch.Tensor, tokens: list[int], most: int, allowed: set[int]) -> list[int]:
        """Greedy tokens among ``allowed`` that continue ``tokens``; the last of ``tokens`` has no features yet."""
        features, follow = features[: len(tokens) - 1], tokens[1:]
        forbidden = torch.tensor([token not in allowed for token in self.known.tolist()])
        for _ in range(most):
            hidden = self.hidden(features, follow)
            logits = self.logits(hidden[-1]).masked_fill(forbidden, -torch.inf)
            features = torch.cat([features, hidden[-1:]])
            follow = [*follow, int(self.known[logits.argmax()])]
        return follow[len(tokens) - 1 :]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, (self.shape.hidden,), self.tensors[f"{name}.weight"], EPSILON)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return linear(x, self.tensors[f"midlayer.{name}.weight"])

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        def heads(name: str) -> torch.Tensor:
            return self._linear(x, f"self_attn.{name}").unflatten(-1, (-1, self.shape.head_dim)).transpose(0, 1)

        query, key, value = rotated(heads("q_proj")), rotated(heads("k_proj")), heads("v_proj")
        key, value = (each.repeat_interleave(self.shape.heads // self.shape.kv_heads, 0) for each in (key, value))
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self._linear(mixed.transpose(0, 1).flatten(1), "self_attn.o_proj")


def rotated(heads: torch.Tensor) -> torch.Tensor:
    """RoPE of [heads, positions, dim], from position 0 on."""
    half = heads.shape[-1] // 2
    angles = torch.arange(heads.shape[1])[:, None] * THETA ** -(torch.arange(half) / half)
    low, high = heads[..., :half], heads[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


class DraftingReference(Protocol):
    """A head in torch."""

    def features(self, tokens: list[int]) -> torch.Tensor:
        """The model's features of each token, [tokens, hidden]."""

    def drafts(self, features: torch.Tensor, tokens: list[int], most: int, allowed: set[int]) -> list[int]:
        """Greedy tokens among ``allowed`` that continue ``tokens``; the last of ``tokens`` has no features yet."""


def expected_counts(
    head: DraftingReference, prompt: list[int], generated: list[int], allowed: set[int], num_places: int
) -> np.ndarray:
    """Counts [2, num_places] of draft tokens and accepted draft tokens by position, computed by the head in torch."""
    counts, features = np.zeros((2, num_places), int), head.features([*prompt, *generated])
    done = 1  # the first token comes without drafts
    while done < len(generated):
        known, most = [*prompt, *generated[:done]], min(num_places, len(generated) - done - 1)
        drafts = head.drafts(features, known, most, allowed)
        num_kept = 0
        while num_kept < len(drafts) and drafts[num_kept] == generated[done + num_kept]:
            num_kept += 1
        counts[0, : len(drafts)] += 1
        counts[1, :num_kept] += 1
        done += num_kept + 1
    return counts
