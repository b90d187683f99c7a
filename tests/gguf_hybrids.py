"""Writes tiny hybrids as GGUF files, like llama.cpp's converter, from saved checkpoints.

Names are those of the tables of the ``gguf`` package, which is llama.cpp's own.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.gguf_writer import _add, _tokenizer

Named = Iterator[tuple[str, np.ndarray]]
_ARCHITECTURES = {
    "nemotron_h": gguf.MODEL_ARCH.NEMOTRON_H,
    "granitemoehybrid": gguf.MODEL_ARCH.GRANITE_HYBRID,
    "bamba": gguf.MODEL_ARCH.GRANITE_HYBRID,
    "falcon_h1": gguf.MODEL_ARCH.FALCON_H1,
    "kimi_linear": gguf.MODEL_ARCH.KIMI_LINEAR,
}
_NEMOTRON = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}


def write_hybrid_gguf(
    directory: Path,
    path: Path,
    metadata: dict[str, Any] | None = None,
    without: str = "",
    trims_axes: bool = False,
    rounds: str = "",
) -> Path:
    """Write the checkpoint in ``directory``; ``metadata`` adds or, with None, removes keys of the architecture.

    Tensors whose names match ``without`` are left out. With ``trims_axes`` leading axes of 1 are left out, as tools
    that quantize files do. Matrices whose rows are whole blocks are stored as Q8_0 with ``rounds`` "blocks", and as
    float32 rounded to that with "values".
    """
    config, tensors = json.loads((directory / "config.json").read_text()), load_file(directory / "model.safetensors")
    family = config["model_type"]
    architecture = _ARCHITECTURES[family]
    if family == "nemotron_h" and "moe" in config["layers_block_type"]:
        architecture = gguf.MODEL_ARCH.NEMOTRON_H_MOE
    layers = config.get("num_hidden_layers") or len(config["layers_block_type"])
    names, prefix = gguf.get_tensor_name_map(architecture, layers), gguf.MODEL_ARCH_NAMES[architecture]
    writer = gguf.GGUFWriter(path, prefix)
    fields = {**_METADATA[family](config, layers), **(metadata or {})}
    values = {f"{prefix}.{key}": value for key, value in fields.items()}
    for key, value in {**values, **_tokenizer(config["vocab_size"])}.items():
        if value is not None:
            _add(writer, key, value)
    for name, tensor in _stacked(_apart(tensors.items(), config)):
        name = re.sub(r"\.dt_bias$", ".dt_proj.bias", name)
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        stored = name if name.startswith("blk.") else names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        array = _changed(name, stored, tensor.astype(np.float32), config)
        while trims_axes and array.ndim > 1 and array.shape[0] == 1:
            array = array[0]
        if not re.fullmatch(without, stored):
            _add_tensor(writer, stored, np.ascontiguousarray(array), rounds)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensor(writer: gguf.GGUFWriter, name: str, array: np.ndarray, rounds: str) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    if not rounds or array.ndim < 2 or array.shape[-1] % 32 or "ssm_norm" in name:
        writer.add_tensor(name, array)
        return
    blocks = gguf.quants.quantize(array, kind)
    if rounds == "blocks":
        writer.add_tensor(name, blocks, raw_dtype=kind)
    else:
        writer.add_tensor(name, gguf.quants.dequantize(blocks, kind))


def _apart(tensors: Any, config: dict[str, Any]) -> Named:
    """``tensors`` of which none is to be divided: Granite's gates and up, and the keys and values of latents."""
    for name, tensor in tensors:
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        if name.endswith(("block_sparse_moe.input_linear.weight", "shared_mlp.input_linear.weight")):
            suffix = "_exps" if "sparse" in name else "_shexp" if config["num_local_experts"] else ""
            for part, half in zip(("gate", "up"), np.split(tensor, 2, axis=-2), strict=True):
                yield f"blk.{layer[1]}.ffn_{part}{suffix}.weight", half
        elif name.endswith("shared_mlp.output_linear.weight") and not config["num_local_experts"]:
            yield f"blk.{layer[1]}.ffn_down.weight", tensor
        elif name.endswith("kv_b_proj.weight"):
            heads = tensor.reshape(config["num_attention_heads"], -1, tensor.shape[-1])
            keys, others = np.split(heads, [config["qk_nope_head_dim"]], axis=1)
            yield f"blk.{layer[1]}.attn_k_b.weight", keys.swapaxes(1, 2)
            yield f"blk.{layer[1]}.attn_v_b.weight", others
        else:
            yield name, tensor


def _stacked(tensors: Named) -> Named:
    """``tensors`` with one tensor for the matrices of all experts of a layer."""
    stacks: dict[str, dict[int, np.ndarray]] = {}
    roles = {"w1": "gate", "w2": "down", "w3": "up", "up_proj": "up", "down_proj": "down"}
    for name, tensor in tensors:
        place = re.fullmatch(r".*layers\.(\d+)\..*\.experts\.(\d+)\.(\w+)\.weight", name)
        if place is None:
            yield name, tensor
        else:
            stacks.setdefault(f"blk.{place[1]}.ffn_{roles[place[3]]}_exps.weight", {})[int(place[2])] = tensor
    for name, experts in stacks.items():
        yield name, np.stack([experts[number] for number in sorted(experts)])


def _changed(name: str, stored: str, values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """What the converter makes of a tensor's ``values``."""
    family, groups = config["model_type"], config.get("n_groups") or config.get("mamba_n_groups")
    if stored.endswith("ssm_a"):
        values = -np.exp(values)
    if family == "kimi_linear":
        return values.reshape(1, -1, 1, values.shape[-1]) if "ssm_conv1d" in stored else values
    if stored.endswith(("ssm_a", "ssm_d")):
        return values.reshape(-1, 1)
    if stored.endswith("ssm_conv1d.weight"):
        return values.squeeze()
    if stored.endswith("ssm_norm.weight"):
        return values.reshape(groups, -1)
    if family == "falcon_h1":
        return values * _falcon_factors(name, config) if values.ndim > 1 else values
    if stored.endswith(("attn_q.weight", "attn_k.weight")):
        heads = config["num_attention_heads" if "attn_q" in stored else "num_key_value_heads"]
        return values.reshape(heads, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
    return values


def _falcon_factors(name: str, config: dict[str, Any]) -> Any:
    """The factors that the converter multiplies into a matrix of Falcon-H1."""
    reads, groups = config["attention_in_multiplier"], config["mamba_n_groups"] * config["mamba_d_state"]
    parts = (config["mamba_d_ssm"], config["mamba_d_ssm"], groups, groups, config["mamba_n_heads"])
    factors = {
        "down_proj": config["mlp_multipliers"][1],
        "gate_proj": config["mlp_multipliers"][0],
        "k_proj": config["key_multiplier"] * reads,
        "q_proj": reads,
        "v_proj": reads,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "in_proj": np.repeat(np.float32(config["ssm_multipliers"]), parts)[:, None] * config["ssm_in_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    return factors.get(name.split(".")[-2], 1.0)


def _usual(config: dict[str, Any], layers: int) -> dict[str, Any]:
    experts = config.get("num_local_experts") or None
    return {
        "block_count": layers,
        "context_length": config.get("max_position_embeddings", config.get("model_max_length")),
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", config.get("layer_norm_epsilon")),
        "rope.freq_base": config.get("rope_parameters", {}).get("rope_theta"),
        "vocab_size": config["vocab_size"],
        "expert_count": experts,
        "expert_used_count": config.get("num_experts_per_tok") if experts else None,
        "expert_shared_feed_forward_length": config.get("shared_intermediate_size"),
    }


def _mamba(config: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    width, state, groups, heads, dim = (config[name] for name in names)
    return {
        **{"ssm.conv_kernel": width, "ssm.state_size": state, "ssm.group_count": groups},
        **{"ssm.time_step_rank": heads, "ssm.inner_size": heads * dim},
    }


_USUAL_NAMES = ("mamba_d_conv", "mamba_d_state", "mamba_n_groups", "mamba_n_heads", "mamba_d_head")


def _granite(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """Metadata of Granite 4 and of Bamba, which has rotary positions and no factors."""
    is_bamba = config["model_type"] == "bamba"
    indices = config.get("attn_layer_indices") or []
    kinds = config.get("layer_types") or ["attention" if number in indices else "mamba" for number in range(layers)]
    attends = [kind in ("attention", "full_attention") for kind in kinds]
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    return {
        **_usual(config, layers),
        **_mamba(config, _USUAL_NAMES),
        "attention.head_count_kv": [config["num_key_value_heads"] * attending for attending in attends],
        "rope.dimension_count": head_dim // 2 if is_bamba else head_dim,
        "rope.scaling.finetuned": is_bamba,
        **({} if is_bamba else {"context_length": 1 << 20, "attention.scale": config["attention_multiplier"]}),
        "embedding_scale": config.get("embedding_multiplier"),
        "residual_scale": config.get("residual_multiplier"),
        "logit_scale": config.get("logits_scaling"),
    }


def _nemotron(config: dict[str, Any], layers: int) -> dict[str, Any]:
    kinds = [_NEMOTRON[kind] for kind in config["layers_block_type"]]
    names = ("conv_kernel", "ssm_state_size", "n_groups", "mamba_num_heads", "mamba_head_dim")
    has_experts = "E" in kinds
    inner = config["moe_intermediate_size" if has_experts else "intermediate_size"]
    experts = {
        **{"expert_count": config["n_routed_experts"], "expert_used_count": config["num_experts_per_tok"]},
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        **{"expert_shared_count": config["n_shared_experts"], "expert_weights_norm": config["norm_topk_prob"]},
        **{"expert_weights_scale": config["routed_scaling_factor"], "expert_group_count": config["n_group"]},
        "moe_latent_size": config["moe_latent_size"],
    }
    return {
        **_usual(config, layers),
        **_mamba(config, names),
        **{"context_length": 1 << 20, "attention.layer_norm_epsilon": config["layer_norm_epsilon"]},
        "attention.head_count_kv": [config["num_key_value_heads"] * (kind == "*") for kind in kinds],
        "feed_forward_length": [inner * (kind in "-E") for kind in kinds],
        **{"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]},
        **{"rope.dimension_count": config["hidden_size"] // config["num_attention_heads"]},
        **{"rope.freq_base": 10000.0, "rope.scaling.finetuned": False},
        **(experts if has_experts else {}),
    }


def _falcon(config: dict[str, Any], layers: int) -> dict[str, Any]:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    lengths = {"attention.key_length": head_dim, "attention.value_length": head_dim}
    return {**_usual(config, layers), **_mamba(config, _USUAL_NAMES), **lengths}


def _kimi(config: dict[str, Any], layers: int) -> dict[str, Any]:
    rotary, latent = config["qk_rope_head_dim"], config["kv_lora_rank"]
    return {
        **_usual(config, layers),
        "attention.head_count_kv": [int(kind == "full_attention") for kind in config["layer_types"]],
        **{"ssm.conv_kernel": config["linear_conv_kernel_dim"], "kda.head_dim": config["linear_head_dim"]},
        **{"attention.q_lora_rank": config["q_lora_rank"], "attention.kv_lora_rank": latent},
        **{"rope.dimension_count": rotary, "attention.key_length": latent + rotary, "rope.freq_base": 10000.0},
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotary,
        "attention.value_length_mla": config["v_head_dim"],
        **{"expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_token"]},
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["num_shared_experts"],
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        **{"expert_weights_scale": config["routed_scaling_factor"], "expert_gating_func": 2},
        **{"expert_group_count": config["num_expert_group"], "expert_group_used_count": config["topk_group"]},
    }


_METADATA = {
    "bamba": _granite,
    "granitemoehybrid": _granite,
    "nemotron_h": _nemotron,
    "falcon_h1": _falcon,
    "kimi_linear": _kimi,
}
