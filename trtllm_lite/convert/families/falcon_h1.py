"""Falcon-H1 (arXiv 2507.22448): attention and Mamba-2 (arXiv 2405.21060) side by side in each layer, and constant
factors of many parts (arXiv 2203.03466).
"""

from dataclasses import replace
from typing import Any

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.falcon import FalconFactors
from trtllm_lite.convert.parts.mamba2 import MambaKeys, MambaParts, mamba_tensor_names
from trtllm_lite.convert.parts.mamba_gguf import (
    MAMBA_GGUF_ROLES,
    MAMBA_GGUF_TENSORS,
    inner_and_head_dim,
    mamba_gguf_keys,
)
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.ends import Embedding, Head
from trtllm_lite.network.layers import Layer, ParallelMixers, Residual, SequentialLayer
from trtllm_lite.network.mamba2 import SpaceHeads

NAMES = {
    **TENSOR_NAMES,
    **mamba_tensor_names("model.layers.{layer}.mamba"),
    **{f"{name}_proj": f"model.layers.{{layer}}.feed_forward.{name}_proj" for name in ("gate", "up", "down")},
    "mlp_norm": "model.layers.{layer}.pre_ff_layernorm",
    "final_norm": "model.final_layernorm",
}
_HEADS = SpaceHeads(num_heads=128, num_groups=1, state_size=256, head_dim=8)
_KEYS = MambaKeys(
    inner="mamba_d_ssm",
    out_bias="projectors_bias",
    change_nothing=("mamba_chunk_size", "num_logits_to_keep", "mlp_expansion_factor"),
)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; without ``mamba_rms_norm`` the results of Mamba-2 are gated and not normalised."""
    parts, factors = LlamaParts.read(config, NAMES, epsilon=1e-5), FalconFactors.read(config)
    mamba, has_norm = MambaParts.read(config, _HEADS, _KEYS), config.flag("mamba_rms_norm")
    gate_last = config.flag("mamba_norm_before_gate", True)
    bias, mlp_bias, hidden = config.flag("attention_bias"), config.flag("mlp_bias"), parts.sizes.hidden_size

    def layer(tensors: Tensors, _: int) -> Layer:
        norm = mamba.norm(tensors, gate_last=gate_last) if has_norm else None
        recurrent = factors.mamba(mamba.block(tensors, norm))
        attention = factors.attention(parts.attention(parts.projections(tensors, bias, bias)))
        mixers = ParallelMixers(recurrent, attention, factors.of_attention)
        return SequentialLayer(
            Residual(factors.norm(parts.norm(tensors, "attention_norm", hidden)), mixers),
            Residual(
                parts.norm(tensors, "mlp_norm", hidden),
                factors.mlp(parts.gated_mlp(tensors, parts.activation, mlp_bias)),
            ),
            name="mixers",
        )

    made = parts.decoder(config, parts.layers(layer))
    first, head = Embedding(made.embedding.table, factors.embedding), Head(made.head.linear, factors.logits)
    return replace(made, embedding=first, head=head)


def _gguf_config(config: dict[str, Any]) -> dict[str, Any]:
    """Sizes of heads; llama.cpp multiplies the factors into the matrices, and has norms after gates alone."""
    inner, head_dim = inner_and_head_dim(config, "mamba_n_heads")
    return {"mamba_d_ssm": inner, "mamba_d_head": head_dim, "mamba_norm_before_gate": False}


_GGUF_TENSORS = {**MAMBA_GGUF_TENSORS, "without_suffix": (*MAMBA_GGUF_TENSORS["without_suffix"], "mlp_norm")}
FAMILY = Family(
    name="falcon_h1",
    architectures=("FalconH1ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "falcon-h1",
        roles=MAMBA_GGUF_ROLES,
        keys=mamba_gguf_keys("mamba_d_conv", "mamba_d_state", "mamba_n_groups", "mamba_n_heads"),
        config=_gguf_config,
        flags={"mamba_rms_norm": "blk.0.ssm_norm.weight"},
        **_GGUF_TENSORS,
    ),
)
