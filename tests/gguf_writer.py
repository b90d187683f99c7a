"""Writes tiny models as GGUF files, like llama.cpp's converter (names, metadata, order of query and key rows)."""

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_INPUTS_OF_LAYERS = {
    **_GEMMA,
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    **{"per_layer_input_gate": "inp_gate", "per_layer_projection": "proj"},
    "post_per_layer_input_norm": "post_norm",
}
_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_SHARED_EXPERTS = {
    "mlp.gate.e_score_correction": "exp_probs_b",
    "mlp.gate.moe_statics.e_score_correction": "exp_probs_b",
    **{f"mlp.shared_experts.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
}
_DELTA = {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_qkvz": "ssm_in",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.dt": "ssm_dt",
    "linear_attn.A": "ssm_a",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
_SHORT_CONVOLUTIONS = {
    "model.embedding_norm": "token_embd_norm",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "self_attn.out_proj": "attn_output",
    **{f"conv.{name}": f"shortconv.{name}" for name in ("conv", "in_proj", "out_proj")},
    **{f"feed_forward.{own}": f"ffn_{name}" for own, name in (("w1", "gate"), ("w3", "up"), ("w2", "down"))},
    "feed_forward.gate": "ffn_gate_inp",
    "feed_forward.correction": "exp_probs_b",
    **{f"feed_forward.experts.{name}_proj": f"ffn_{name}_exps" for name in ("gate", "up", "down")},
}
# The tensors around the layer with which Qwen's models draft.
_NEXTN = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head_norm",
}
_DELTA_ARCHITECTURES = ("qwen3next", "qwen35", "qwen35moe")
_OWN_NAMES: dict[str, dict[str, str]] = {
    "gpt2": {
        "transformer.wte": "token_embd",
        "transformer.wpe": "position_embd",
        "transformer.ln_f": "output_norm",
        "ln_1": "attn_norm",
        "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    },
    "gptneox": {
        "gpt_neox.embed_in": "token_embd",
        "gpt_neox.final_layer_norm": "output_norm",
        "attention.query_key_value": "attn_qkv",
        "attention.dense": "attn_output",
        "mlp.dense_h_to_4h": "ffn_up",
        "mlp.dense_4h_to_h": "ffn_down",
    },
    "falcon": {
        "transformer.word_embeddings": "token_embd",
        "transformer.ln_f": "output_norm",
        "ln_attn": "attn_norm_2",
        "ln_mlp": "attn_norm",
        "self_attention.query_key_value": "attn_qkv",
        "self_attention.dense": "attn_output",
        "mlp.dense_h_to_4h": "ffn_up",
        "mlp.dense_4h_to_h": "ffn_down",
    },
    "phi2": {
        "model.final_layernorm": "output_norm",
        "self_attn.dense": "attn_output",
        "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down",
    },
    "seed_oss": {"post_attention_layernorm": "post_attention_norm"},
    "hunyuan-dense": {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"},
    "apertus": {"attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"},
    "bert": {
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": "position_embd",
        "embeddings.token_type_embeddings": "token_types",
        "embeddings.LayerNorm": "token_embd_norm",
        "attention.self.query": "attn_q",
        "attention.self.key": "attn_k",
        "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output",
        "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down",
        "output.LayerNorm": "layer_output_norm",
    },
    "modern-bert": {
        "model.embeddings.tok_embeddings": "token_embd",
        "model.embeddings.norm": "token_embd_norm",
        "model.final_norm": "output_norm",
        "attn_norm": "attn_norm",
        "attn.Wqkv": "attn_qkv",
        "attn.Wo": "attn_output",
        "mlp_norm": "ffn_norm",
        "mlp.Wi": "ffn_up",
        "mlp.Wo": "ffn_down",
    },
    **dict.fromkeys(_DELTA_ARCHITECTURES, _DELTA),
    **dict.fromkeys(("lfm2", "lfm2moe"), _SHORT_CONVOLUTIONS),
    "chatglm": {"mlp.gate_up_proj": "ffn_up"},
    "glm4": {
        "post_self_attn_layernorm": "post_attention_norm",
        "post_mlp_layernorm": "post_ffw_norm",
        "mlp.gate_up_proj": "ffn_up",
    },
    "exaone4": _POST_NORMS,
    "starcoder2": {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    "stablelm": {"self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm"},
    "mimo2": {**_SHARED_EXPERTS, "self_attn.sinks": "attn_sinks"},
    "phimoe": {"mlp.router": "ffn_gate_inp"},
    "phi3": {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    "olmo2": _POST_NORMS,
    "gpt-oss": {
        **{"self_attn.sinks": "attn_sinks", "mlp.router": "ffn_gate_inp"},
        "post_attention_layernorm": "post_attention_norm",
    },
    "gemma3n": {
        **_INPUTS_OF_LAYERS,
        **{f"model.altup_projections{number}": "altup_proj" for number in ("", ".0", ".1", ".2")},
        **{f"model.altup_unembed_projections{number}": "altup_unembd_proj" for number in ("", ".0", ".1", ".2")},
        **{"altup.modality_router": "altup_router", "altup.router_norm": "altup_router_norm"},
        **{"altup.prediction_coefs": "altup_predict_coef", "altup.correction_coefs": "altup_correct_coef"},
        **{"altup.correct_output_scale": "altup_correct_scale", "laurel.post_laurel_norm": "laurel_post_norm"},
        **{"laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r"},
    },
    "gemma4": {
        **_INPUTS_OF_LAYERS,
        **{"layer_scalar": "layer_output_scale", "router": "ffn_gate_inp", "router.proj": "ffn_gate_inp"},
        **{"experts.gate_up_proj": "ffn_gate_up_exps", "experts.down_proj": "ffn_down_exps"},
        **{f"post_feedforward_layernorm_{number}": f"post_ffw_norm_{number}" for number in (1, 2)},
        "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    },
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "deepseek2": {
        "self_attn.q_a_proj": "attn_q_a",
        "self_attn.q_a_layernorm": "attn_q_a_norm",
        "self_attn.q_b_proj": "attn_q_b",
        "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "self_attn.kv_a_layernorm": "attn_kv_a_norm",
        "self_attn.kv_b_proj": "attn_kv_b",
        "self_attn.k_b_proj": "attn_k_b",
        "self_attn.v_b_proj": "attn_v_b",
        **_SHARED_EXPERTS,
    },
    "dots1": _SHARED_EXPERTS,
    "hunyuan-moe": {
        **{"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"},
        "mlp.gate.wg": "ffn_gate_inp",
        **{f"mlp.shared_mlp.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
    },
    "exaone-moe": {**_SHARED_EXPERTS, "mlp.e_score_correction": "exp_probs_b"},
    "ernie4_5-moe": _SHARED_EXPERTS,
    "glm4moe": {**_SHARED_EXPERTS, "post_attention_layernorm": "post_attention_norm"},
    "minimax-m2": {"mlp.e_score_correction": "exp_probs_b"},
    "llama4": {
        "feed_forward.router": "ffn_gate_inp",
        **{f"feed_forward.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
        **{f"feed_forward.experts.{name}_proj": f"ffn_{name}_exps" for name in ("gate", "up", "down")},
        **{f"feed_forward.shared_expert.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
    },
    "granitemoe": {
        "block_sparse_moe.router": "ffn_gate_inp",
        **{f"block_sparse_moe.experts.{name}_proj": f"ffn_{name}_exps" for name in ("gate", "up", "down")},
        **{f"shared_mlp.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
    },
}
_ARCHITECTURES = {
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "glm4_moe_lite": "deepseek2",
    **dict.fromkeys(("glm4_moe", "solar_open"), "glm4moe"),
    "ernie4_5_moe": "ernie4_5-moe",
    "exaone_moe": "exaone-moe",
    "hunyuan_v1_moe": "hunyuan-moe",
    "mimo_v2_flash": "mimo2",
    "minimax_m2": "minimax-m2",
    "cohere": "command-r",
    "phi": "phi2",
    "hunyuan_v1_dense": "hunyuan-dense",
    "gpt_neox": "gptneox",
    "gpt_oss": "gpt-oss",
    "glm": "chatglm",
    "gemma3_text": "gemma3",
    **{"gemma3n_text": "gemma3n", "gemma4_text": "gemma4"},
    "olmo3": "olmo2",
    "llama4_text": "llama4",
    **dict.fromkeys(("mistral", "ministral3"), "mistral3"),
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    **{"qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"},
    "granitemoeshared": "granitemoe",
    "lfm2_moe": "lfm2moe",
    "modernbert": "modern-bert",
    **dict.fromkeys(("roberta", "xlm-roberta"), "bert"),
}
_INTERLEAVED = ("llama", "internlm2", "mistral3", "smollm3", "granite", "granitemoe", "arcee")
_TRANSPOSED = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")  # in GPT-2


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    kinds: dict[str, str] | None = None,
    metadata: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    whole_heads: bool = False,
    architecture: str | None = None,
    fuses_qkv: bool = False,
    fuses_gates: bool = False,
) -> Path:
    """Write ``model``; ``kinds`` maps GGUF tensor stems like ``attn_q`` to quantization types (F32 otherwise).

    ``metadata`` adds or, with None, removes keys; ``extra`` adds float32 tensors. With ``whole_heads`` one matrix makes
    keys and values from latents, as in files of 2024. ``architecture`` replaces the model's own. With
    ``fuses_qkv`` queries, keys and values of a layer are one tensor. With ``fuses_gates`` those of Qwen3-Next's
    recurrent layers are one tensor with gates, as in the first files.
    """
    architecture = architecture or _ARCHITECTURES.get(model.config.model_type, model.config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    fields = {**_metadata(model.config, architecture), **_tokenizer(model.config.vocab_size), **_listed(model)}
    fields |= metadata or {}
    for key, value in fields.items():
        if value is not None:
            _add(writer, key, value)
    fused: dict[str, list[np.ndarray]] = {}
    tensors = _by_head(_apart(model.state_dict().items()), model.config, whole_heads)
    if architecture in _DELTA_ARCHITECTURES:
        tensors = _recurrent(tensors, model.config, fuses_gates)
    for name, tensor in tensors:
        name = name.replace("expert_bias", "correction.bias")
        tensor = tensor[:, 0] if name.endswith("conv.conv.weight") else tensor
        if name.startswith("pooler.") or ".act_fn." in name:  # llama.cpp leaves the pooler out
            continue
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        rows, stem, suffix = tensor.float().numpy(), *_gguf_name(name, architecture)
        if stem.endswith("inp_shexp"):
            rows = rows[0]
        if stem == "position_embd":
            rows = rows[_unused_positions(model.config) :]
        if architecture == "gpt2" and f"{stem}.{suffix}".endswith(_TRANSPOSED):
            rows = rows.T
        adds_one = architecture in ("gemma", "gemma2", "gemma3", "nemotron")
        if adds_one and stem.endswith("norm") and suffix == "weight":
            rows = rows + 1
        if architecture in _DELTA_ARCHITECTURES and stem.endswith("norm") and not stem.endswith("ssm_norm"):
            rows = rows + 1
        if architecture in _INTERLEAVED and stem.endswith(("attn_q", "attn_k")):
            rows = _interleave(rows, model.config, stem)
        if architecture in ("gptneox", "falcon") and stem.endswith("attn_qkv"):
            rows = _queries_keys_values(rows, model.config, architecture)
        is_matrix = rows.ndim > 1 and suffix == "weight"
        kind = gguf.GGMLQuantizationType[(kinds or {}).get(stem.split(".")[-1], "F32") if is_matrix else "F32"]
        data = rows.astype(np.float16) if kind.name == "F16" else gguf.quants.quantize(np.ascontiguousarray(rows), kind)
        if fuses_qkv and stem.endswith(("attn_q", "attn_k", "attn_v")):
            parts = fused.setdefault(f"{stem[:-1]}qkv.{suffix}", [])
            parts.append(data)
            if len(parts) == 3:
                writer.add_tensor(f"{stem[:-1]}qkv.{suffix}", np.concatenate(parts), raw_dtype=kind)
            continue
        if stem.endswith("ssm_a"):
            writer.add_tensor(stem, -np.exp(rows))
            continue
        writer.add_tensor(f"{stem}.{suffix}", np.ascontiguousarray(data), raw_dtype=kind)
    divisors = {"rope_freqs.weight": _rope_divisors(model.config)} if architecture == "gemma4" else {}
    for name, array in {**divisors, **(extra or {})}.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def drafting_layer(tensors: dict[str, torch.Tensor], number: int, architecture: str) -> dict[str, np.ndarray]:
    """The ``tensors`` of a layer of Qwen that drafts (MTP), named without mtp., as the file's block ``number``."""
    found = {}
    for name, tensor in _apart(tensors.items()):
        rows, (stem, _, suffix) = tensor.numpy(), name.rpartition(".")
        if stem in _NEXTN:
            stored = f"blk.{number}.nextn.{_NEXTN[stem]}"
        else:
            stored, suffix = _gguf_name(name.replace("layers.0.", f"model.layers.{number}."), architecture)
        rows = rows[0] if stored.endswith("inp_shexp") else rows
        found[f"{stored}.{suffix}"] = np.ascontiguousarray(rows + 1 if stored.endswith("norm") else rows)
    return found


def dequantized(model: PreTrainedModel, kinds: dict[str, str]) -> PreTrainedModel:
    """``model`` with the matrices in ``kinds`` rounded, in place, as the file stores them."""
    with torch.no_grad():
        for name, parameter in _apart(model.named_parameters()):
            if parameter.ndim == 1:
                continue
            architecture = _ARCHITECTURES.get(model.config.model_type, model.config.model_type)
            stem, suffix = _gguf_name(name, architecture)
            kind = kinds.get(stem.split(".")[-1], "F32") if suffix == "weight" else "F32"
            if kind != "F32":
                kind_id = gguf.GGMLQuantizationType[kind]
                raw = gguf.quants.quantize(np.ascontiguousarray(parameter.numpy()), kind_id)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(raw, kind_id)))
    return model


def _apart(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """``tensors`` with gate and up of experts, [experts, inner, hidden], as two views of one tensor.

    Granite's shared expert, [inner, hidden], is split, too. Llama 4 and gpt-oss have [experts, hidden, inner]; in gpt-
    oss rows of gate and up alternate, also in biases. Gemma 4's experts are not split.
    """
    found = dict(tensors)
    if any(name.endswith(("layer_scalar", "router.per_expert_scale")) for name in found):
        yield from ((_gemma4_name(name), tensor) for name, tensor in found.items())
        return
    if any(name.endswith("_proj_bias") for name in found):
        yield from _apart_by_turns(found)
        return
    for name, tensor in found.items():
        stem, is_expert, _ = name.rpartition("experts." if "experts." in name else "shared_mlp.")
        if is_expert and "shared_expert" not in name and not name.endswith("_proj.weight"):
            is_both = name.endswith(("gate_up_proj", "input_linear.weight"))
            roles = ("gate_proj", "up_proj") if is_both else ("down_proj",)
            names = [f"{stem}{is_expert}{role}.weight" for role in roles]
            is_transposed = "feed_forward.experts" in name and f"{stem}gate.weight" not in found
            tensor = tensor.transpose(1, 2) if is_transposed else tensor
            yield from zip(names, tensor.chunk(len(roles), dim=-2), strict=True)
        else:
            yield name, tensor


def _gemma4_name(name: str) -> str:
    """The name by which a tensor of Gemma 4 is looked up; gate and up of its experts stay one tensor."""
    if name.endswith((".layer_scalar", ".experts.down_proj", ".experts.gate_up_proj")):
        return f"{name}.weight"
    return name.replace("router.per_expert_scale", "experts.down_proj.scale")


def _by_head(
    tensors: Iterable[tuple[str, torch.Tensor]], config: Any, whole_heads: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """``tensors`` with one matrix per head for keys from latents, transposed, and another for values.

    Norms that heads have of their own are stacked, and so are projections of residual streams.
    """
    norms: dict[str, list[torch.Tensor]] = {}
    for name, tensor in tensors:
        if name.startswith("model.altup_"):
            stem = name.split(".")[1]
            of_streams = norms.setdefault(stem, [])
            of_streams.append(tensor)
            if len(of_streams) == config.altup_num_inputs - 1:
                yield f"model.{stem}.weight", torch.stack(of_streams)
        elif "_layernorm.norms." in name:
            of_heads = norms.setdefault(name.partition(".norms.")[0], [])
            of_heads.append(tensor)
            if len(of_heads) == (config.num_attention_heads if ".q_" in name else config.num_key_value_heads):
                yield f"{name.partition('.norms.')[0]}.weight", torch.stack(of_heads)
        elif name.endswith((".sinks", ".correct_output_scale")):
            yield f"{name}.weight", tensor
        elif name.endswith("e_score_correction_bias"):
            yield name.removesuffix("_bias") + ".bias", tensor.squeeze()
        elif name.endswith("kv_b_proj.weight") and not whole_heads:
            heads = tensor.reshape(config.num_attention_heads, -1, tensor.shape[-1])
            keys, values = heads.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
            yield name.replace("kv_b", "k_b"), keys.transpose(1, 2)
            yield name.replace("kv_b", "v_b"), values
        else:
            yield name, tensor


def _recurrent(
    tensors: Iterable[tuple[str, torch.Tensor]], config: Any, fuses_gates: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """``tensors`` as llama.cpp's converter names and orders those of Gated DeltaNet.

    From Qwen3.5 on it reorders value heads: the first one of every key head, then the second one of each.
    """
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    of_keys, of_values = keys * config.linear_key_head_dim, values // keys * config.linear_value_head_dim
    tiled = np.arange(values).reshape(keys, -1).T.ravel() if config.model_type != "qwen3_next" else np.arange(values)
    features = (tiled[:, None] * config.linear_value_head_dim + np.arange(config.linear_value_head_dim)).ravel()
    channels = np.concatenate([np.arange(2 * of_keys), 2 * of_keys + features])
    for name, tensor in tensors:
        stem, _, what = name.rpartition("linear_attn.")
        if what == "in_proj_qkvz.weight" and not fuses_gates:
            parts = (config.linear_key_head_dim, config.linear_key_head_dim, of_values, of_values)
            *qkv, z = tensor.reshape(keys, -1, tensor.shape[-1]).split(parts, 1)
            yield f"{stem}linear_attn.in_proj_qkv.weight", torch.cat([part.flatten(0, 1) for part in qkv])
            yield f"{stem}linear_attn.in_proj_z.weight", z.flatten(0, 1)
        elif what in ("in_proj_qkv.weight", "conv1d.weight"):
            yield name, tensor[channels].squeeze(1)
        elif what == "in_proj_z.weight":
            yield name, tensor[features]
        elif what in ("in_proj_a.weight", "in_proj_b.weight"):
            yield name, tensor[tiled]
        elif what in ("A_log", "dt_bias"):
            yield f"{stem}linear_attn.{what.replace('_', '.')}", tensor[tiled]
        elif what == "out_proj.weight":
            yield name, tensor[:, features]
        else:
            yield name, tensor


def _apart_by_turns(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in tensors.items():
        stem, is_expert, what = name.partition("experts.")
        if is_expert:
            suffix, role = ("bias", what.removesuffix("_bias")) if what.endswith("_bias") else ("weight", what)
            rows = tensor if suffix == "bias" else tensor.transpose(1, 2)
            parts = {"gate_proj": rows[:, ::2], "up_proj": rows[:, 1::2]} if "gate" in role else {role: rows}
            yield from ((f"{stem}experts.{part}.{suffix}", values) for part, values in parts.items())
        else:
            yield f"{name}.weight" if name.endswith("sinks") else name, tensor


def _unused_positions(config: Any) -> int:
    """The number of RoBERTa's positions before the first token's."""
    return config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta") else 0


def _gguf_name(name: str, architecture: str) -> tuple[str, str]:
    names = {**_NAMES, **_OWN_NAMES.get(architecture, {})}
    name = f"model.{name}" if architecture == "modern-bert" else name
    stem, _, suffix = name.rpartition(".")
    if stem.startswith(("model.layers.", "transformer.h.", "gpt_neox.layers.", "encoder.layer.")):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{names[rest]}", suffix
    return names[stem], suffix


def _interleave(rows: np.ndarray, config: Any, stem: str) -> np.ndarray:
    """llama.cpp's order within a head: (0, half, 1, half + 1, …)."""
    heads = config.num_attention_heads if stem.endswith("q") else config.num_key_value_heads
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _listed(model: PreTrainedModel) -> dict[str, list[float]]:
    """The numbers of learned activations, of which each layer has one."""
    found: dict[str, list[float]] = {}
    for name, tensor in model.state_dict().items():
        if ".act_fn." in name:
            found.setdefault(f"xielu.{name.rpartition('.')[2]}", []).append(tensor.float().item())
    return found


def _queries_keys_values(rows: np.ndarray, config: Any, architecture: str) -> np.ndarray:
    """The rows of all queries, then those of all keys, then those of all values."""
    heads = config.num_attention_heads
    groups = heads if architecture == "gptneox" else _falcon_groups(config)
    by_group = rows.reshape(groups, heads // groups + 2, -1, *rows.shape[1:])
    return np.concatenate([part.reshape(-1, *rows.shape[1:]) for part in np.split(by_group, [-2, -1], axis=1)])


def _falcon_groups(config: Any) -> int:
    """The number of key/value heads."""
    return 1 if config.multi_query and not config.new_decoder_architecture else config.num_kv_heads


def _metadata(config: Any, architecture: str) -> dict[str, Any]:
    if architecture == "gemma4":  # some layers have other heads
        config = copy.deepcopy(config)
        config.allow_global_per_layer_attribute_access = True
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings - _unused_positions(config),
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        **_OWN_METADATA.get(architecture, _llama_metadata)(config, head_dim),
        **{key: getattr(config, name) for name, key in _EXPERTS.items() if hasattr(config, name)},
    }
    return {f"{architecture}.{key}": value for key, value in values.items()}


_EXPERTS = {
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
}


def _grouped_metadata(config: Any) -> dict[str, Any]:
    """Metadata of all families except GPT-2."""
    return {
        "feed_forward_length": config.intermediate_size,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
    }


def _head_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    return {**_grouped_metadata(config), "attention.key_length": head_dim, "attention.value_length": head_dim}


def _llama_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    rope = {"rope.freq_base": config.rope_parameters["rope_theta"], "rope.dimension_count": head_dim}
    return {**_head_metadata(config, head_dim), **rope}


def _gpt2_metadata(config: Any, _: int) -> dict[str, Any]:
    return {"feed_forward_length": config.n_inner, "attention.layer_norm_epsilon": config.layer_norm_epsilon}


def _phi3_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    return {
        **_grouped_metadata(config),
        "rope.scaling.original_context_length": config.max_position_embeddings,
        "rope.dimension_count": int(head_dim * config.rope_parameters.get("partial_rotary_factor", 1)),
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "attention.sliding_window": config.sliding_window or 0,
    }


def _deepseek2_metadata(config: Any, _: int) -> dict[str, Any]:
    """Metadata of latent attention, in which a cache has one key/value head: a latent and a rotated key."""
    rope, latent = config.rope_parameters, config.kv_lora_rank
    is_v3 = config.model_type != "deepseek_v2"
    yarn = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope.get("factor"),
        "rope.scaling.original_context_length": rope.get("original_max_position_embeddings"),
        "rope.scaling.yarn_log_multiplier": 0.1 * rope.get("mscale_all_dim", 0),
    }
    return {
        **_grouped_metadata(config),
        **{"attention.head_count_kv": 1, "attention.q_lora_rank": config.q_lora_rank, "attention.kv_lora_rank": latent},
        **{"attention.key_length": latent + config.qk_rope_head_dim, "attention.value_length": latent},
        "attention.key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length_mla": config.v_head_dim,
        **{"rope.dimension_count": config.qk_rope_head_dim, "rope.freq_base": rope["rope_theta"]},
        **(yarn if rope["rope_type"] == "yarn" else {}),
        **_shared_experts_metadata(config, is_v3),
    }


def _shared_experts_metadata(config: Any, scores_by_sigmoid: bool = True) -> dict[str, Any]:
    """Metadata of mixtures of experts like DeepSeek's; those with sigmoids have groups of experts."""
    groups = {"expert_group_count": "n_group", "expert_group_used_count": "topk_group"} if scores_by_sigmoid else {}
    types = getattr(config, "mlp_layer_types", None)
    return {
        "leading_dense_block_count": types.count("dense") if types else getattr(config, "first_k_dense_replace", 0),
        "expert_count": config.num_local_experts if hasattr(config, "num_local_experts") else config.num_experts,
        "expert_shared_count": getattr(config, "n_shared_experts", None) or config.num_shared_experts,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_gating_func": 2 if scores_by_sigmoid else 1,
        "expert_weights_norm": config.norm_topk_prob or None,
        **{key: getattr(config, name) for key, name in groups.items()},
    }


def _glm4moe_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    """Metadata of GLM-4.5, Solar Open and dots.llm1."""
    rope = config.rope_parameters
    return {
        **_llama_metadata(config, head_dim),
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1)),
        **_shared_experts_metadata(config),
    }


def _exaone_moe_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    return {
        **_exaone4_metadata(config, head_dim),
        **_shared_experts_metadata(config),
        "expert_shared_feed_forward_length": config.moe_intermediate_size * config.num_shared_experts,
        **{"rope.scaling.type": "none", "nextn_predict_layers": 0},
    }


def _mimo2_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    """Metadata with lists for layers, behind which stand those of a layer that drafts."""
    full, sliding = (config.rope_parameters[kind] for kind in ("full_attention", "sliding_attention"))
    slides = [kind == "sliding_attention" for kind in (*config.layer_types, "sliding_attention")]
    return {
        **{**_head_metadata(config, head_dim), "block_count": len(slides), "nextn_predict_layers": 1},
        **{"attention.value_length": config.v_head_dim, "attention.value_scale": config.attention_value_scale},
        "attention.head_count_kv": [config.num_key_value_heads * (1 + slide) for slide in slides],
        **{"attention.sliding_window": config.sliding_window - 1, "attention.sliding_window_pattern": slides},
        **{"rope.freq_base": full["rope_theta"], "rope.freq_base_swa": sliding["rope_theta"]},
        "rope.dimension_count": int(head_dim * full["partial_rotary_factor"]),
        **{"expert_count": config.n_routed_experts, "expert_gating_func": 2},
    }


def _hunyuan_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    rope = config.rope_parameters
    return {
        **_llama_metadata(config, head_dim),
        "rope.freq_base": rope["rope_theta"] * rope["alpha"] ** (head_dim / (head_dim - 2)),
        **{"rope.scaling.type": "none", "rope.scaling.factor": 1.0, "rope.scaling.original_context_length": 262144},
        **{"expert_feed_forward_length": config.intermediate_size},
        **{"expert_shared_count": 1, "expert_shared_feed_forward_length": config.intermediate_size},
    }


def _minimax_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    return {
        **_llama_metadata(config, head_dim),
        "rope.dimension_count": config.rotary_dim,
        **{"expert_feed_forward_length": config.intermediate_size, "expert_gating_func": 2},
    }


def _ernie_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    return {
        **_llama_metadata(config, head_dim),
        **{"expert_count": config.moe_num_experts, "expert_used_count": config.moe_k},
        "interleave_moe_layer_step": config.moe_layer_interval,
        "leading_dense_block_count": config.moe_layer_start_index,
        "expert_shared_count": config.moe_num_shared_experts,
        "expert_shared_feed_forward_length": config.intermediate_size // config.num_key_value_heads,
    }


def _llama4_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    return {
        **_llama_metadata(config, head_dim),
        "feed_forward_length": config.intermediate_size_mlp,
        "expert_feed_forward_length": config.intermediate_size,
        "interleave_moe_layer_step": config.interleave_moe_layer_step,
    }


def _gpt_oss_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    rope = config.rope_parameters
    return {
        **_head_metadata(config, head_dim),
        "expert_feed_forward_length": config.intermediate_size,
        "attention.sliding_window": config.sliding_window,
        "rope.freq_base": rope["rope_theta"],
        "rope.scaling.type": rope["rope_type"],
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
    }


def _gemma2_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    return {
        **_head_metadata(config, head_dim),
        **{cap: getattr(config, cap) for cap in caps},
        "attention.sliding_window": config.sliding_window,
    }


def _gemma3_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    rope = config.rope_parameters["full_attention"]
    return {
        **_head_metadata(config, head_dim),
        "rope.freq_base": rope["rope_theta"],
        "rope.scaling.type": rope["rope_type"],
        "rope.scaling.factor": rope["factor"],
        "attention.sliding_window": config.sliding_window,
    }


def _gemma3n_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    shares = torch.tensor(config.activation_sparsity_pattern)
    return {
        **_head_metadata(config, head_dim),
        "rope.freq_base": config.rope_parameters["full_attention"]["rope_theta"],
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "activation_sparsity_scale": torch.distributions.Normal(0, 1).icdf(shares).tolist(),
        **{"altup.active_idx": 0, "altup.num_inputs": 4, "final_logit_softcapping": config.final_logit_softcapping},
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
    }


def _gemma4_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    ropes, slides = config.rope_parameters, [kind == "sliding_attention" for kind in config.layer_types]
    wide, kv_heads, full = config.intermediate_size, config.num_key_value_heads, _without_window(config)
    shared = range(config.num_hidden_layers - config.num_kv_shared_layers, config.num_hidden_layers)
    of_layers = [2 * wide if layer in shared else wide for layer in range(config.num_hidden_layers)]
    of_kind = full.get("num_key_value_heads")
    return {
        **_grouped_metadata(config),
        "feed_forward_length": of_layers if config.use_double_wide_mlp else wide,
        "attention.head_count_kv": [kv_heads if slide else of_kind for slide in slides] if of_kind else kv_heads,
        **{f"attention.{kind}_length": full["head_dim"] for kind in ("key", "value")},
        **{f"attention.{kind}_length_swa": head_dim for kind in ("key", "value")},
        **{"rope.dimension_count": full["head_dim"], "rope.dimension_count_swa": head_dim},
        "rope.freq_base": ropes["full_attention"]["rope_theta"],
        "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
        **{"attention.sliding_window": config.sliding_window, "attention.sliding_window_pattern": slides},
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input or 0,
        "final_logit_softcapping": config.final_logit_softcapping,
        "expert_used_count": config.top_k_experts,
    }


def _without_window(config: Any) -> dict[str, int]:
    """The sizes of Gemma 4's layers without a window."""
    layer = str(config.layer_types.index("full_attention"))
    sizes: dict[str, int] = config.to_dict()["per_layer_config"][layer]
    return sizes


def _rope_divisors(config: Any) -> np.ndarray:
    """What llama.cpp divides the frequencies of Gemma 4's layers without a window by."""
    half = _without_window(config)["head_dim"] // 2
    turned = int(half * config.rope_parameters["full_attention"]["partial_rotary_factor"])
    return np.array([1.0] * turned + [1e30] * (half - turned), np.float32)


def _command_r_metadata(config: Any, _: int) -> dict[str, Any]:
    return {
        **_grouped_metadata(config),
        "attention.layer_norm_epsilon": config.layer_norm_eps,
        "logit_scale": config.logit_scale,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "rope.scaling.type": "none",
    }


def _gptneox_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    return {
        "feed_forward_length": config.intermediate_size,
        "attention.layer_norm_epsilon": config.layer_norm_eps,
        "use_parallel_residual": config.use_parallel_residual,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "rope.dimension_count": int(head_dim * config.rope_parameters.get("partial_rotary_factor", 1)),
    }


def _cohere2_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    return {
        **_command_r_metadata(config, head_dim),
        **{"attention.sliding_window": config.sliding_window, "rope.dimension_count": head_dim},
        "vocab_size": config.vocab_size,
    }


def _hunyuan_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    rope = config.rope_parameters
    return {
        **_head_metadata(config, head_dim),
        "rope.freq_base": rope["rope_theta"] * rope["alpha"] ** (head_dim / (head_dim - 2)),
        **{"rope.scaling.type": "none", "rope.scaling.factor": 1.0, "rope.scaling.original_context_length": 262144},
    }


def _nemotron_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    return {
        **_llama_metadata(config, head_dim),
        "attention.layer_norm_epsilon": config.norm_eps,
        "rope.dimension_count": int(head_dim * config.rope_parameters.get("partial_rotary_factor", 1)),
        "rope.scaling.type": "none",
    }


def _partly_rotated_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    """Metadata of Phi-2 and StableLM."""
    return {
        **_grouped_metadata(config),
        "attention.layer_norm_epsilon": config.layer_norm_eps,
        "rope.dimension_count": int(head_dim * config.rope_parameters.get("partial_rotary_factor", 1)),
        "use_parallel_residual": True if config.model_type == "stablelm" else None,
    }


def _falcon_metadata(config: Any, _: int) -> dict[str, Any]:
    return {
        **{"feed_forward_length": config.ffn_hidden_size, "attention.head_count_kv": _falcon_groups(config)},
        **{"attention.layer_norm_epsilon": config.layer_norm_epsilon, "tensor_data_layout": "jploski"},
    }


def _chatglm_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    rotated = int(head_dim * config.rope_parameters.get("partial_rotary_factor", 1))
    return {**_grouped_metadata(config), "rope.dimension_count": rotated, "rope.freq_base": 10000.0}


def _glm4_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    return {**_chatglm_metadata(config, head_dim), **_head_metadata(config, head_dim)}


def _exaone4_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    return {
        **_llama_metadata(config, head_dim),
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
    }


def _starcoder2_metadata(config: Any, _: int) -> dict[str, Any]:
    return {
        **_grouped_metadata(config),
        "attention.layer_norm_epsilon": config.norm_epsilon,
        "attention.sliding_window": config.sliding_window,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }


def _granite_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    return {
        **_llama_metadata(config, head_dim),
        "attention.scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
    }


def _olmo2_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    """Metadata of OLMo 2 and OLMo 3."""
    if config.model_type == "olmo2":
        return _llama_metadata(config, head_dim)
    return {
        **_head_metadata(config, head_dim),
        "rope.freq_base": config.rope_parameters["full_attention"]["rope_theta"],
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
    }


def _bert_metadata(config: Any, _: int) -> dict[str, Any]:
    return {
        "feed_forward_length": config.intermediate_size,
        "attention.layer_norm_epsilon": config.layer_norm_eps,
        "attention.causal": False,
        "pooling_type": 2,
    }


def _modern_bert_metadata(config: Any, _: int) -> dict[str, Any]:
    """Metadata of ModernBERT's first configs, which also give ``norm_eps`` under BERT's name."""
    ropes = config.rope_parameters
    return {
        "feed_forward_length": config.intermediate_size,
        **{f"attention.layer_norm_{kind}epsilon": config.norm_eps for kind in ("", "rms_")},
        **{"attention.causal": False, "vocab_size": config.vocab_size, "hidden_activation": config.hidden_activation},
        **{"attention.sliding_window": config.local_attention, "attention.sliding_window_pattern": 3},
        **{"rope.scaling.type": "none", "rope.freq_base": ropes["full_attention"]["rope_theta"]},
        "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
        "pooling_type": 2,
    }


def _mistral3_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    """Metadata of Mistral 3 and of Mistral, whose files have no windows."""
    rope, usual = config.rope_parameters, _llama_metadata(config, head_dim)
    if config.model_type == "mistral":
        return usual
    return {
        **usual,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": rope.get("beta_fast"),
        "rope.scaling.yarn_beta_slow": rope.get("beta_slow"),
        "rope.scaling.yarn_log_multiplier": rope.get("mscale_all_dim"),
        "attention.temperature_scale": rope["llama_4_scaling_beta"],
    }


def _delta_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    rope = config.rope_parameters
    is_next = config.model_type == "qwen3_next"
    return {
        **{
            "attention.head_count_kv": config.num_key_value_heads,
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        },
        **{"attention.key_length": head_dim, "attention.value_length": head_dim},
        "feed_forward_length": getattr(config, "intermediate_size", None),
        "rope.freq_base": rope["rope_theta"],
        "rope.dimension_count": int(head_dim * rope["partial_rotary_factor"]),
        "rope.dimension_sections": None if is_next else [11, 11, 10, 0],
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
        "full_attention_interval": config.layer_types.index("full_attention") + 1,
    }


def _lfm2_metadata(config: Any, head_dim: int) -> dict[str, Any]:
    wide, unit = config.intermediate_size, getattr(config, "block_multiple_of", None)
    is_sparse = config.model_type == "lfm2_moe"
    return {
        **_llama_metadata(config, head_dim),
        "feed_forward_length": wide if is_sparse else -(-int(2 * wide / 3) // unit) * unit,
        "attention.head_count_kv": [
            config.num_key_value_heads if kind == "full_attention" else 0 for kind in config.layer_types
        ],
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "shortconv.l_cache": config.conv_L_cache,
        **({"leading_dense_block_count": config.num_dense_layers, "expert_gating_func": 2} if is_sparse else {}),
        **({"expert_weights_scale": config.routed_scaling_factor} if is_sparse else {}),
    }


_OWN_METADATA = {
    **dict.fromkeys(("lfm2", "lfm2moe"), _lfm2_metadata),
    **dict.fromkeys(_DELTA_ARCHITECTURES, _delta_metadata),
    "mistral3": _mistral3_metadata,
    "modern-bert": _modern_bert_metadata,
    "deepseek2": _deepseek2_metadata,
    **dict.fromkeys(("dots1", "glm4moe"), _glm4moe_metadata),
    "hunyuan-moe": _hunyuan_metadata,
    "exaone-moe": _exaone_moe_metadata,
    "mimo2": _mimo2_metadata,
    "minimax-m2": _minimax_metadata,
    "ernie4_5-moe": _ernie_metadata,
    "gpt-oss": _gpt_oss_metadata,
    "llama4": _llama4_metadata,
    "bert": _bert_metadata,
    "olmo2": _olmo2_metadata,
    "granite": _granite_metadata,
    "granitemoe": _granite_metadata,
    "gptneox": _gptneox_metadata,
    "chatglm": _chatglm_metadata,
    "glm4": _glm4_metadata,
    "exaone4": _exaone4_metadata,
    "starcoder2": _starcoder2_metadata,
    "gpt2": _gpt2_metadata,
    **dict.fromkeys(("phi3", "phimoe"), _phi3_metadata),
    "gemma2": _gemma2_metadata,
    "gemma3": _gemma3_metadata,
    "gemma3n": _gemma3n_metadata,
    "gemma4": _gemma4_metadata,
    "command-r": _command_r_metadata,
    "cohere2": _cohere2_metadata,
    "gemma": _head_metadata,
    "nemotron": _nemotron_metadata,
    "hunyuan-dense": _hunyuan_metadata,
    **dict.fromkeys(("phi2", "stablelm"), _partly_rotated_metadata),
    "falcon": _falcon_metadata,
}


def _tokenizer(vocab_size: int) -> dict[str, Any]:
    """A byte-level vocabulary with two control tokens in front and unused tokens at the end."""
    alphabet = sorted(_byte_alphabet())
    tokens = ["<|begin|>", "<|end|>", *alphabet, "he", "Ġt", "Ġthe"]
    types = [3, 3] + [1] * (len(tokens) - 2) + [5] * (vocab_size - len(tokens))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens + [f"[unused{number}]" for number in range(vocab_size - len(tokens))],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["h e", "Ġ t", "Ġt he"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages }}",
    }


def _byte_alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return ByteLevel.alphabet()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
