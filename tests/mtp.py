"""A tiny random MiMo with an MTP layer, which predicts a further token, and that layer in torch."""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu
from transformers import PreTrainedModel

from tests.eagle import ODD, HeadShape, rotated
from tests.models import save_tiny_model

LAYER = "model.mtp_layers.0."
EPSILON = 1e-5


def save_tiny_mimo(
    directory: Path, shape: HeadShape = ODD, dtype: torch.dtype = torch.float32, **config: Any
) -> "TorchMimo":
    """Write a MiMo; returns its MTP layer and, in float32, its model without the layer: a Qwen2."""
    model = save_tiny_model("qwen2", directory, dtype=dtype, **shape.of_model()).float()
    generator, hidden, dim = torch.Generator().manual_seed(1), shape.hidden, shape.head_dim

    def vector(size: int, mean: float, spread: float) -> torch.Tensor:
        return (mean + spread * torch.randn(size, generator=generator)).to(dtype)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * 1.5 / columns**0.5).to(dtype)

    heads = {"q_proj": shape.heads * dim, "k_proj": shape.kv_heads * dim, "v_proj": shape.kv_heads * dim}
    norms = ("input_layernorm", "post_attention_layernorm", "token_layernorm", "hidden_layernorm", "final_layernorm")
    tensors = {
        **{f"{name}.weight": vector(hidden, 1, 0.2) for name in norms},
        **{f"self_attn.{name}.weight": matrix(size, hidden) for name, size in heads.items()},
        **{f"self_attn.{name}.bias": vector(size, 0, 0.5) for name, size in heads.items()},
        "self_attn.o_proj.weight": matrix(hidden, shape.heads * dim),
        "input_proj.weight": matrix(hidden, 2 * hidden),
        "mlp.gate_proj.weight": matrix(shape.wide, hidden),
        "mlp.up_proj.weight": matrix(shape.wide, hidden),
        "mlp.down_proj.weight": matrix(hidden, shape.wide),
    }
    weights = directory / "model.safetensors"
    save_file({**load_file(weights), **{f"{LAYER}{name}": tensor for name, tensor in tensors.items()}}, weights)
    own = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1, **config}
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **own}))
    return TorchMimo({name: tensor.float() for name, tensor in tensors.items()}, model, shape)


@dataclass(frozen=True)
class TorchPredictor(ABC):
    """The MTP layer of ``tensors``, on whole sequences without a cache."""

    tensors: dict[str, torch.Tensor]
    model: PreTrainedModel

    @property
    def known(self) -> torch.Tensor:
        """The tokens that the layer has logits for: all."""
        return torch.arange(self.model.config.vocab_size)

    def features(self, tokens: list[int]) -> torch.Tensor:
        """The model's last state of each token, [tokens, hidden]."""
        with torch.no_grad():
            return self.model.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]

    @abstractmethod
    def hidden(self, features: torch.Tensor, next_tokens: list[int]) -> torch.Tensor:
        """The states after the last norm, from each token's feature and the token after it, [tokens, hidden]."""

    def embedded(self, tokens: list[int]) -> torch.Tensor:
        """The model's embeddings, [tokens, hidden]."""
        return self.model.get_input_embeddings().weight.detach()[tokens]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits, [tokens, vocabulary]."""
        return linear(hidden, self.model.get_output_embeddings().weight.detach())

    def drafts(self, features: torch.Tensor, tokens: list[int], most: int, allowed: set[int]) -> list[int]:
        """Greedy tokens among ``allowed`` that continue ``tokens``; the last of ``tokens`` has no features yet."""
        features, follow = features[: len(tokens) - 1], tokens[1:]
        choices = sorted(allowed)
        for _ in range(most):
            hidden = self.hidden(features, follow)
            features = torch.cat([features, hidden[-1:]])
            follow = [*follow, choices[int(self.logits(hidden[-1])[choices].argmax())]]
        return follow[len(tokens) - 1 :]

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))


@dataclass(frozen=True)
class TorchMimo(TorchPredictor):
    """MiMo's layer."""

    shape: HeadShape

    def hidden(self, features: torch.Tensor, next_tokens: list[int]) -> torch.Tensor:
        embedded = self._norm(self.embedded(next_tokens), "token_layernorm")
        x = self._linear(torch.cat([self._norm(features, "hidden_layernorm"), embedded], -1), "input_proj")
        x = x + self._attend(self._norm(x, "input_layernorm"))
        y = self._norm(x, "post_attention_layernorm")
        x = x + self._linear(silu(self._linear(y, "mlp.gate_proj")) * self._linear(y, "mlp.up_proj"), "mlp.down_proj")
        return self._norm(x, "final_layernorm")

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, (self.shape.hidden,), self.tensors[f"{name}.weight"], EPSILON)

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        def heads(name: str) -> torch.Tensor:
            return self._linear(x, f"self_attn.{name}").unflatten(-1, (-1, self.shape.head_dim)).transpose(0, 1)

        query, key, value = rotated(heads("q_proj")), rotated(heads("k_proj")), heads("v_proj")
        key, value = (each.repeat_interleave(self.shape.heads // self.shape.kv_heads, 0) for each in (key, value))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self._linear(mixed.transpose(0, 1).flatten(1), "self_attn.o_proj")
