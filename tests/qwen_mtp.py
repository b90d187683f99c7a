"""Tiny random models of Qwen with recurrent layers and an MTP layer, which predicts a further token; it in torch.

Sources of the layer: qwen3_next_mtp.py and qwen3_5_mtp.py of vLLM and of SGLang, graph_mtp of llama.cpp's qwen35.cpp.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import scaled_dot_product_attention, silu

from tests.models import save_tiny_model
from tests.mtp import TorchPredictor

LAYER = "layers.0."
# Sizes that kernels of GPUs take.
FOR_GPU: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
    **{"partial_rotary_factor": 0.5, "linear_num_value_heads": 8, "linear_key_head_dim": 32},
    "linear_value_head_dim": 48,
}


def save_tiny_qwen(
    family: str,
    directory: Path,
    *,
    stacked: bool = False,
    dtype: torch.dtype = torch.float32,
    **shape: Any,
) -> "TorchQwen":
    """Write a model of ``family``; returns its MTP layer and, in float32, its model without the layer.

    With ``stacked`` the experts of the MTP layer are in two tensors, as in files of Qwen3.5 in 16 bits; otherwise each
    matrix is a tensor of its own.
    """
    model = save_tiny_model(family, directory, dtype=dtype, **shape).float()
    weights = directory / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in random_layer(model.config).items()}
    written = tensors if stacked else _apart(tensors)
    save_file({**load_file(weights), **{f"mtp.{name}": tensor for name, tensor in written.items()}}, weights)
    return TorchQwen({name: tensor.float() for name, tensor in tensors.items()}, model)


def random_layer(config: Any) -> dict[str, torch.Tensor]:
    """The tensors of an MTP layer for a model with this config, float32; those of experts are stacked."""
    generator, hidden, dim = torch.Generator().manual_seed(1), config.hidden_size, config.head_dim

    def norm(size: int) -> torch.Tensor:
        return 0.2 * torch.randn(size, generator=generator)

    def matrix(*extents: int) -> torch.Tensor:
        return torch.randn(extents, generator=generator) * 1.5 / extents[-1] ** 0.5

    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    tensors = {
        "fc.weight": matrix(hidden, 2 * hidden),
        **{f"{name}.weight": norm(hidden) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")},
        **{f"{LAYER}{name}.weight": norm(hidden) for name in ("input_layernorm", "post_attention_layernorm")},
        **{f"{LAYER}self_attn.{name}_norm.weight": norm(dim) for name in "qk"},
        f"{LAYER}self_attn.q_proj.weight": matrix(heads * 2 * dim, hidden),
        f"{LAYER}self_attn.k_proj.weight": matrix(kv_heads * dim, hidden),
        f"{LAYER}self_attn.v_proj.weight": matrix(kv_heads * dim, hidden),
        f"{LAYER}self_attn.o_proj.weight": matrix(hidden, heads * dim),
    }

    def mlp(name: str, wide: int) -> dict[str, torch.Tensor]:
        inner = {f"{LAYER}{name}.{role}_proj.weight": matrix(wide, hidden) for role in ("gate", "up")}
        return {**inner, f"{LAYER}{name}.down_proj.weight": matrix(hidden, wide)}

    experts = getattr(config, "num_experts", None)
    if experts is None:
        return {**tensors, **mlp("mlp", config.intermediate_size)}
    inner = config.moe_intermediate_size
    return {
        **tensors,
        **mlp("mlp.shared_expert", config.shared_expert_intermediate_size),
        f"{LAYER}mlp.shared_expert_gate.weight": matrix(1, hidden),
        f"{LAYER}mlp.gate.weight": matrix(experts, hidden),
        f"{LAYER}mlp.experts.gate_up_proj": matrix(experts, 2 * inner, hidden),
        f"{LAYER}mlp.experts.down_proj": matrix(experts, hidden, inner),
    }


def _apart(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The ``tensors`` with a tensor for each matrix of each expert."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        stem, stacked, what = name.partition(".experts.")
        if not stacked:
            found[name] = tensor
            continue
        roles = ("gate_proj", "up_proj") if what == "gate_up_proj" else ("down_proj",)
        for role, part in zip(roles, tensor.chunk(len(roles), 1), strict=True):
            found |= {f"{stem}.experts.{i}.{role}.weight": matrix.clone() for i, matrix in enumerate(part)}
    return found


@dataclass(frozen=True)
class TorchQwen(TorchPredictor):
    """Qwen's layer: fc([norm(embedding), norm(state)]), then a layer with gated attention, then a norm."""

    def hidden(self, features: torch.Tensor, next_tokens: list[int]) -> torch.Tensor:
        embedded = self._norm(self.embedded(next_tokens), "pre_fc_norm_embedding")
        x = self._linear(torch.cat([embedded, self._norm(features, "pre_fc_norm_hidden")], -1), "fc")
        x = x + self._attend(self._norm(x, f"{LAYER}input_layernorm"))
        y = self._norm(x, f"{LAYER}post_attention_layernorm")
        has_experts = f"{LAYER}mlp.gate.weight" in self.tensors
        x = x + (self._experts(y) if has_experts else self._gated(y, f"{LAYER}mlp"))
        return self._norm(x, "norm")

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.model.config.rms_norm_eps)
        return x * scale * (1 + self.tensors[f"{name}.weight"])

    def _gated(self, x: torch.Tensor, name: str) -> torch.Tensor:
        inner = silu(self._linear(x, f"{name}.gate_proj")) * self._linear(x, f"{name}.up_proj")
        return self._linear(inner, f"{name}.down_proj")

    def _experts(self, x: torch.Tensor) -> torch.Tensor:
        """The shared expert, and the best experts of each token by their shares, whose sum is 1."""
        name = f"{LAYER}mlp"
        gate = self._linear(x, f"{name}.shared_expert_gate").sigmoid()
        total = gate * self._gated(x, f"{name}.shared_expert")
        config = self.model.config
        shares, chosen = self._linear(x, f"{name}.gate").softmax(-1).topk(config.num_experts_per_tok)
        if getattr(config, "norm_topk_prob", True):
            shares = shares / shares.sum(-1, keepdim=True)
        both, down = (self.tensors[f"{name}.experts.{what}"] for what in ("gate_up_proj", "down_proj"))
        for token, (own, experts) in enumerate(zip(shares, chosen, strict=True)):
            for share, expert in zip(own, experts, strict=True):
                gated, up = (both[expert] @ x[token]).chunk(2)
                total[token] += share * (down[expert] @ (silu(gated) * up))
        return total

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        config, name = self.model.config, f"{LAYER}self_attn"

        def heads(role: str) -> torch.Tensor:
            projected = self._linear(x, f"{name}.{role}_proj")
            count = config.num_attention_heads if role == "q" else config.num_key_value_heads
            return projected.unflatten(-1, (count, -1)).transpose(0, 1)

        query, gate = heads("q").chunk(2, -1)
        query, key = (
            self._rotated(self._norm(query, f"{name}.q_norm")),
            self._rotated(self._norm(heads("k"), f"{name}.k_norm")),
        )
        groups = config.num_attention_heads // config.num_key_value_heads
        key, value = (each.repeat_interleave(groups, 0) for each in (key, heads("v")))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True) * gate.sigmoid()
        return self._linear(mixed.transpose(0, 1).flatten(1), f"{name}.o_proj")

    def _rotated(self, heads: torch.Tensor) -> torch.Tensor:
        """RoPE of the first part of each head, [heads, positions, dim], from position 0 on."""
        rope = self.model.config.rope_parameters
        half = int(heads.shape[-1] * rope["partial_rotary_factor"]) // 2
        angles = torch.arange(heads.shape[1])[:, None] * rope["rope_theta"] ** -(torch.arange(half) / half)
        low, high, rest = heads.split([half, half, heads.shape[-1] - 2 * half], -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([low * cos - high * sin, high * cos + low * sin, rest], -1)
