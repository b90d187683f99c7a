"""Writes tiny models as quantized Hugging Face checkpoints: the tensors and settings of each method's layout.

The layouts are written from their descriptions, not by the code that reads them.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.models import save_model, save_tokenizer

Tensors = dict[str, torch.Tensor]
# Takes a matrix [out, in]; returns its stored tensors and its dequantized elements.
Quantize = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
Round = Callable[[torch.Tensor], torch.Tensor]

MLP_SIZE = 192  # intermediate_size of the models that are written in a mixed layout
UNTOUCHED = "layers.1.mlp.down_proj"  # a layer that no layout quantizes
_IN_16_BITS = ("lm_head", "shared_expert_gate", "linear_attn.in_proj_a", "linear_attn.in_proj_b", UNTOUCHED)
_INPUT_SCALES = {"float8_e4m3fn": 1 / 64, "int8": 1 / 16}
_LARGEST = {"float8_e4m3fn": 448, "int8": 127}


@dataclass(frozen=True)
class Layout:
    """How layers are stored: ``settings`` are the quantization_config.

    The inputs of a quantized layer are multiplied with ``factors(in_features)``, one factor for each feature, and then
    rounded by ``round``.
    """

    settings: dict[str, Any]
    quantize: Quantize
    round: Round | None = None
    extra: Tensors = field(default_factory=dict)
    factors: Callable[[int], torch.Tensor] | None = None


def write_quantized(model: PreTrainedModel, directory: Path, layout: Layout) -> PreTrainedModel:
    """Write ``model`` in ``layout``, and give it the weights and activations that the checkpoint means."""
    model.save_pretrained(directory)
    save_tokenizer(directory)
    tensors = load_file(directory / "model.safetensors")
    _quantize_experts(tensors, dict(model.named_parameters()), layout)
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.Linear) or name.endswith(_IN_16_BITS):
            continue
        layer.weight.data = _quantize(tensors, name, layout)
        if layout.factors is not None:
            layer.register_forward_pre_hook(_hook(layout.factors(layer.in_features).mul))
        if layout.round is not None:
            layer.register_forward_pre_hook(_hook(layout.round))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": layout.settings}))
    return model


def _quantize(tensors: Tensors, layer: str, layout: Layout, extra_factor: int = 1) -> torch.Tensor:
    """Replace the weight of ``layer`` among ``tensors`` by those of ``layout``; returns the dequantized matrix."""
    stored, matrix = layout.quantize(tensors.pop(f"{layer}.weight"))
    tensors |= {f"{layer}.{suffix}": tensor.contiguous() for suffix, tensor in stored.items()}
    tensors |= {f"{layer}.{suffix}": tensor * extra_factor for suffix, tensor in layout.extra.items()}
    return matrix


def _quantize_experts(tensors: Tensors, parameters: dict[str, nn.Parameter], layout: Layout) -> None:
    """Quantize the weights of experts, each of which has tensors of its own in files; their inputs are never rounded.

    In models all experts of a layer have one parameter for gates and up projections, and one for down projections.
    """
    for layer in [name.removesuffix(".weight") for name in tensors if ".experts." in name]:
        block, number, projection = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)", layer).groups()
        matrix = _quantize(tensors, layer, layout, 1 + int(number))
        if layout.factors is not None:
            matrix = matrix * layout.factors(matrix.shape[1])
        fused = "down_proj" if projection in ("down_proj", "w2") else "gate_up_proj"
        parameter = parameters[f"{block.replace('block_sparse_moe', 'mlp')}.{fused}"].data[int(number)]
        begin = len(matrix) if projection in ("up_proj", "w3") else 0
        parameter[begin : begin + len(matrix)] = matrix


def write_mxfp4_experts(model: PreTrainedModel, directory: Path) -> PreTrainedModel:
    """Write gpt-oss in its published layout, with random experts; give ``model`` their dequantized weights.

    ``gate_up_proj`` and ``down_proj`` are stored as blocks of 32 elements and a power of two for each block.
    """
    save_model(model, directory)
    path, generator = directory / "model.safetensors", torch.Generator().manual_seed(3)
    tensors = load_file(path)
    parameters = dict(model.named_parameters())
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, depth, rows = tensors.pop(name).shape
        shape = (experts, rows, depth // 32)
        blocks = torch.randint(256, (*shape, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(122, 125, shape, dtype=torch.uint8, generator=generator)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        parameters[name].data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    return model


def _hook(rounded: Round) -> Callable[[nn.Module, tuple[torch.Tensor]], torch.Tensor]:
    return lambda _, inputs: rounded(inputs[0])


def _to(x: torch.Tensor, dtype: str) -> torch.Tensor:
    """Numbers rounded to a type, as float32."""
    if dtype == "int8":
        return x.round().clamp(-128, 127)
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def static(dtype: str) -> Round:
    """Round activations with one scale."""
    scale = _INPUT_SCALES[dtype]
    return lambda x: _to(x / scale, dtype) * scale


def by_token(dtype: str) -> Round:
    """Round activations with a scale for each token."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / _LARGEST[dtype]
        return _to(x / scale, dtype) * scale

    return rounded


def in_bytes(
    dtype: str, by_row: bool, scale_dtype: torch.dtype, shape: tuple[int, ...], scales: str = "weight_scale"
) -> Quantize:
    """Store a byte for each element; the scales have ``shape``, and the name ``scales``."""

    def quantized(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        largest = weight.abs().amax(1, keepdim=True) if by_row else weight.abs().max().reshape(1, 1)
        scale = (largest / _LARGEST[dtype]).to(scale_dtype)
        elements = _to(weight / scale.float(), dtype)
        stored = {"weight": elements.to(getattr(torch, dtype)), scales: scale.reshape(shape)}
        return stored, elements * scale.float()

    return quantized


def in_groups(
    weight: torch.Tensor, bits: int, size: int, symmetric: bool, scale_dtype: torch.dtype
) -> list[torch.Tensor]:
    """Unsigned elements [out, in], scales and zero points [out, groups], and the dequantized matrix."""
    groups = weight.reshape(len(weight), -1, size)
    top = 2**bits - 1
    if symmetric:
        scale = (2 * groups.abs().amax(-1) / top).to(scale_dtype)
        zeros = torch.full_like(scale, 2 ** (bits - 1), dtype=torch.int32)
    else:
        scale = ((groups.amax(-1) - groups.amin(-1)) / top).to(scale_dtype)
        zeros = (-groups.amin(-1) / scale.float()).round().clamp(0, top).int()
    elements = ((groups / scale.float()[..., None]).round() + zeros[..., None]).clamp(0, top).int()
    matrix = (elements - zeros[..., None]).double() * scale.double()[..., None]
    return [elements.reshape(weight.shape), scale, zeros, matrix.float().reshape(weight.shape)]


def in_words(elements: torch.Tensor, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Pack neighbours along the last axis in int32 words; nibble i of a word has neighbour order[i]."""
    per_word = 32 // bits
    if bits == 3:  # 32 elements in three words
        numbers = elements.long().reshape(*elements.shape[:-1], -1, 32)
        runs = [sum(int(n) << (3 * i) for i, n in enumerate(run)) for run in numbers.reshape(-1, 32)]
        found = [(run >> (32 * i) & 0xFFFFFFFF) for run in runs for i in range(3)]
        signed = torch.tensor([word - 2**32 if word >= 2**31 else word for word in found])
        return signed.reshape(*elements.shape[:-1], -1).int()
    words = elements.long().reshape(*elements.shape[:-1], -1, per_word)[..., list(order or range(per_word))]
    summed = sum(words[..., place] << (bits * place) for place in range(per_word))
    return torch.where(summed >= 2**31, summed - 2**32, summed).int()


def gptq(bits: int, size: int, symmetric: bool, less: int) -> Quantize:
    """Pack neighbours in a column; zero points are stored minus ``less``."""

    def quantized(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        length = size if size > 0 else weight.shape[1]
        elements, scale, zeros, matrix = in_groups(weight, bits, length, symmetric, torch.float16)
        stored = {
            "qweight": in_words(elements, bits).T,
            "qzeros": in_words((zeros.T - less) % 2**bits, bits),
            "scales": scale.T,
            "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // length,
        }
        return stored, matrix

    return quantized


def with_act_order(
    quantize: Quantize, size: int, elements: str, groups: str, axis: int, seed_axis: int = 1
) -> Quantize:
    """``quantize`` in a random order of columns, which are then put back: a group's columns do not lie together.

    Matrices of equal length along ``seed_axis`` have equal orders.
    """

    def quantized(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(weight.shape[seed_axis]))
        stored, matrix = quantize(weight[:, order])
        back = order.argsort()
        words = (stored[elements].long() & 0xFFFFFFFF).movedim(axis, -1)
        nibbles = (words[..., None] >> (4 * torch.arange(8)) & 15).reshape(len(words), -1)
        stored[elements] = in_words(nibbles[:, back], 4).movedim(-1, axis)
        return {**stored, groups: (torch.arange(weight.shape[1]) // size)[back].int()}, matrix[:, back]

    return quantized


def awq(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Pack eight output features per word, in AutoAWQ's order."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    elements, scale, zeros, matrix = in_groups(weight, 4, 64, False, torch.float16)
    stored = {"qweight": in_words(elements.T, 4, order), "qzeros": in_words(zeros.T, 4, order), "scales": scale.T}
    return stored, matrix


def packed(bits: int, size: int, symmetric: bool) -> Quantize:
    """Pack neighbours in a row; zero points are packed along the output features."""

    def quantized(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        length = size if size > 0 else weight.shape[1]
        elements, scale, zeros, matrix = in_groups(weight, bits, length, symmetric, torch.bfloat16)
        stored = {
            "weight_packed": in_words(elements, bits),
            "weight_scale": scale,
            "weight_shape": torch.tensor(weight.shape),
        }
        return stored | ({} if symmetric else {"weight_zero_point": in_words(zeros.T, bits).T}), matrix

    return quantized


def in_tiles(name: str, scale_dtype: torch.dtype, shape: Callable[[torch.Tensor], torch.Tensor]) -> Quantize:
    """FP8 with a scale for each tile of 128 x 128 (smaller at the ends); the tensor ``name`` is ``shape(scales)``."""

    def quantized(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        down, across = (-(-extent // 128) for extent in weight.shape)
        scale = torch.empty(down, across, dtype=scale_dtype)
        elements, matrix = torch.empty_like(weight), torch.empty_like(weight)
        for i, j in ((i, j) for i in range(down) for j in range(across)):
            tile = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
            scale[i, j] = weight[tile].abs().max() / 448
            elements[tile] = _to(weight[tile] / scale[i, j].float(), "float8_e4m3fn")
            matrix[tile] = elements[tile] * scale[i, j].float()
        return {"weight": elements.to(torch.float8_e4m3fn), name: shape(scale)}, matrix

    return quantized


_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _in_e2m1(groups: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes of two E2M1 numbers each, and the matrix, from ``groups`` [out, count, size] and ``scale`` [out, count]."""
    codes = ((groups / scale[..., None])[..., None] - _E2M1).abs().argmin(-1)
    matrix = (_E2M1[codes] * scale[..., None]).reshape(len(groups), -1)
    codes = codes.reshape(len(groups), -1)
    return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8), matrix


def mxfp4(name: str) -> Quantize:
    """Groups of 32 with power-of-two scales, stored as exponent + 127."""

    def quantized(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        groups = weight.reshape(len(weight), -1, 32)
        exponent = (groups.abs().amax(-1) / 4).log2().floor()
        stored, matrix = _in_e2m1(groups, exponent.exp2())
        return {name: stored, "weight_scale": (exponent + 127).to(torch.uint8)}, matrix

    return quantized


def nvfp4(name: str, whole: str, divides: bool) -> Quantize:
    """Groups of 16 with FP8 scales, which are divided or multiplied by one number, the tensor ``whole``."""

    def quantized(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        groups = weight.reshape(len(weight), -1, 16)
        factor = 448 * 6 / weight.abs().max() if divides else weight.abs().max() / (448 * 6)
        inner = groups.abs().amax(-1) / 6 * factor if divides else groups.abs().amax(-1) / 6 / factor
        inner = inner.to(torch.float8_e4m3fn)
        stored, matrix = _in_e2m1(groups, inner.float() / factor if divides else inner.float() * factor)
        return {name: stored, "weight_scale": inner, whole: factor.reshape(1 if divides else ())}, matrix

    return quantized


_NF4 = torch.tensor(  # the table of bitsandbytes: quantiles of a normal distribution
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
        *(0.7229568362236023, 1.0),
    ]
)


def nf4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Blocks of 64 elements, whose factors are stored as they are."""
    blocks = weight.reshape(-1, 64)
    absmax = blocks.abs().amax(-1)
    codes = ((blocks / absmax[:, None])[..., None] - _NF4).abs().argmin(-1)
    return _in_codes(weight, codes, absmax, {"weight.absmax": absmax}, {})


def nf4_twice(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """The same with factors that are codes of a table of 256 numbers, in blocks of 256, plus an offset."""
    blocks, table = weight.reshape(-1, 64), torch.linspace(-1, 1, 256)
    exact = blocks.abs().amax(-1)
    offset = exact.mean()
    runs = torch.nn.functional.pad(exact - offset, (0, -len(exact) % 256)).reshape(-1, 256)
    outer = runs.abs().amax(-1)
    inner = ((runs / outer[:, None])[..., None] - table).abs().argmin(-1)
    absmax = (table[inner] * outer[:, None]).reshape(-1)[: len(exact)] + offset
    codes = ((blocks / absmax[:, None])[..., None] - _NF4).abs().argmin(-1)
    stored = {"weight.absmax": inner.reshape(-1)[: len(exact)].to(torch.uint8)}
    stored |= {"weight.nested_absmax": outer, "weight.nested_quant_map": table}
    nested = {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
    return _in_codes(weight, codes, absmax, stored, nested)


def _in_codes(
    weight: torch.Tensor, codes: torch.Tensor, absmax: torch.Tensor, stored: Tensors, nested: dict[str, Any]
) -> tuple[Tensors, torch.Tensor]:
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(weight.shape), **nested}
    flat = codes.reshape(-1)
    stored |= {
        "weight": (flat[0::2] << 4 | flat[1::2]).to(torch.uint8)[:, None],
        "weight.quant_map": _NF4.clone(),
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }
    return stored, (_NF4[codes] * absmax[:, None]).reshape(weight.shape)


def int8_of_bitsandbytes(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Rows of int8, and the largest magnitude of each."""
    largest = weight.abs().amax(1)
    elements = (weight * 127 / largest[:, None]).round()
    stored = {"weight": elements.to(torch.int8), "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return stored, elements * (largest / 127)[:, None]


def mixed(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """The layers of the MLP in int8, the others in NVFP4."""
    of_mlp = in_bytes("int8", True, torch.float32, (-1,))
    return of_mlp(weight) if MLP_SIZE in weight.shape else nvfp4("weight", "weight_scale_2", divides=False)(weight)


def nvfp4_with_factors(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """NVFP4 for activations that are multiplied with factors."""
    factors = some_factors(weight.shape[1])
    stored, matrix = nvfp4("weight", "weight_scale_2", divides=False)(weight / factors)
    return {**stored, "pre_quant_scale": factors.bfloat16()}, matrix


def some_factors(features: int) -> torch.Tensor:
    """Factors of activations that are exact in bfloat16."""
    return torch.linspace(0.5, 2, features).bfloat16().float()


def modelopt_awq(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Store two output features in each byte; activations are multiplied with factors."""
    factors = some_factors(weight.shape[1])
    elements, scale, _, matrix = in_groups(weight / factors, 4, 64, True, torch.float32)
    signed = (elements - 8) & 15
    stored = {
        "weight": (signed[0::2] | signed[1::2] << 4).to(torch.uint8),
        "weight_scale": scale,
        "pre_quant_scale": factors.bfloat16(),
    }
    return stored, matrix


def _input_scale(dtype: str, shape: tuple[int, ...] = ()) -> Tensors:
    return {"input_scale": torch.full(shape, _INPUT_SCALES[dtype])}


def _modelopt(algorithm: str, **settings: Any) -> dict[str, Any]:
    ignored = ["lm_head", f"model.{UNTOUCHED}"]
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ignored, **settings}


def _numbers(kind: str, bits: int, strategy: str, **others: Any) -> dict[str, Any]:
    usual = {"symmetric": True, "dynamic": False, "group_size": None, "observer": "minmax", "observer_kwargs": {}}
    return {"type": kind, "num_bits": bits, "strategy": strategy, "block_structure": None, **usual, **others}


def _compressed_tensors(layout: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", f"model.{UNTOUCHED}"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


def _gptq(bits: int, size: int, symmetric: bool, **others: Any) -> dict[str, Any]:
    usual = {"desc_act": False, "true_sequential": True, "damp_percent": 0.01}
    return {"quant_method": "gptq", "bits": bits, "group_size": size, "sym": symmetric, **usual, **others}


def _bitsandbytes(bits: int) -> dict[str, Any]:
    four = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_use_double_quant": True}
    eight = {"llm_int8_threshold": 6.0, "llm_int8_skip_modules": ["lm_head"], "llm_int8_has_fp16_weight": False}
    loads = {"load_in_4bit": bits == 4, "load_in_8bit": bits == 8, "_load_in_4bit": bits == 4}
    return {"quant_method": "bitsandbytes", **loads, **four, **eight, "bnb_4bit_quant_storage": "uint8"}


_FP8, _INT8 = "float8_e4m3fn", "int8"
_MLP = ("gate", "up", "down")
LAYOUTS = {
    "modelopt fp8": Layout(
        _modelopt("FP8"), in_bytes(_FP8, False, torch.float32, ()), static(_FP8), _input_scale(_FP8)
    ),
    "modelopt fp8 by row": Layout(
        _modelopt("FP8_PER_CHANNEL_PER_TOKEN"), in_bytes(_FP8, True, torch.float32, (-1,)), by_token(_FP8)
    ),
    "fp8 in tiles": Layout(
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        in_tiles("weight_scale_inv", torch.float32, lambda scale: scale),
    ),
    "fp8 in tiles with powers of two": Layout(  # as transformers 5.23 writes it with scale_fmt
        {
            **{"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
            **{"scale_fmt": "ue8m0", "modules_to_convert": None, "dequantize": False, "expert_dtype": "fp8"},
        },
        in_tiles("weight_scale_inv", torch.float8_e8m0fnu, lambda scale: scale),
    ),
    "fp8 static": Layout(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        in_bytes(_FP8, False, torch.float32, (1,)),
        static(_FP8),
        _input_scale(_FP8, (1,)),
    ),
    "fp8 static of transformers": Layout(  # like Ministral 3
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None, "dequantize": False},
        in_bytes(_FP8, False, torch.bfloat16, (), "weight_scale_inv"),
        static(_FP8),
        {"activation_scale": torch.tensor(_INPUT_SCALES[_FP8])},
    ),
    "compressed-tensors fp8 in tiles": Layout(
        _compressed_tensors(
            "float-quantized",
            _numbers("float", 8, "block", block_structure=[128, 128]),
            _numbers("float", 8, "group", group_size=128, dynamic=True),
        ),
        in_tiles("weight_scale", torch.bfloat16, lambda scale: scale),
    ),
    "modelopt fp8 in tiles": Layout(
        _modelopt("fp8_pb_wo"), in_tiles("weight_scale", torch.float32, lambda scale: scale[:, None, :, None])
    ),
    "compressed-tensors nvfp4": Layout(
        _compressed_tensors(
            "nvfp4-pack-quantized",
            _numbers("float", 4, "tensor_group", group_size=16),
            _numbers("float", 4, "tensor_group", group_size=16, dynamic="local"),
        ),
        nvfp4("weight_packed", "weight_global_scale", divides=True),
        extra={"input_global_scale": torch.ones(1)},
    ),
    "compressed-tensors mxfp4": Layout(
        _compressed_tensors("mxfp4-pack-quantized", _numbers("float", 4, "group", group_size=32), None),
        mxfp4("weight_packed"),
    ),
    "modelopt nvfp4": Layout(
        _modelopt("NVFP4"), nvfp4("weight", "weight_scale_2", divides=False), extra={"input_scale": torch.tensor(0.5)}
    ),
    "modelopt mxfp4": Layout(_modelopt("mxfp4"), mxfp4("weight")),
    "modelopt nvfp4 awq": Layout(_modelopt("NVFP4_AWQ"), nvfp4_with_factors, factors=some_factors),
    "modelopt mixed": Layout(
        _modelopt(
            "MIXED_PRECISION",
            quantized_layers={
                f"model.layers.{layer}.{part}.{name}_proj": {"quant_algo": algorithm}
                for layer in range(2)
                for part, names, algorithm in (
                    *(("self_attn", "qkvo", "NVFP4"), ("mlp", _MLP, "W8A16")),
                    *((f"mlp.experts.{expert}", _MLP, "W8A16") for expert in range(4)),
                )
                for name in names
            },
        ),
        mixed,
    ),
    "bitsandbytes nf4": Layout(_bitsandbytes(bits=4), nf4),
    "bitsandbytes nf4, twice": Layout(_bitsandbytes(bits=4), nf4_twice),
    "bitsandbytes int8": Layout(_bitsandbytes(bits=8), int8_of_bitsandbytes),
    "modelopt awq": Layout(_modelopt("W4A16_AWQ", group_size=64), modelopt_awq, factors=some_factors),
    "awq": Layout({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}, awq),
    "gptq": Layout(_gptq(4, 64, True), gptq(4, 64, True, 1)),
    "gptq with zero points": Layout(_gptq(4, 64, False), gptq(4, 64, False, 1)),
    "gptq v2 with zero points": Layout(_gptq(4, 32, False, checkpoint_format="gptq_v2"), gptq(4, 32, False, 0)),
    "gptq with act-order": Layout(
        _gptq(4, 64, True, desc_act=True), with_act_order(gptq(4, 64, True, 1), 64, "qweight", "g_idx", 0)
    ),
    "compressed-tensors int4 with act-order": Layout(
        _compressed_tensors("pack-quantized", _numbers("int", 4, "group", symmetric=False, actorder="group"), None),
        with_act_order(packed(4, 64, False), 64, "weight_packed", "weight_g_idx", 1),
    ),
    "gptq 8 bits": Layout(_gptq(8, 64, False), gptq(8, 64, False, 1)),
    "gptq 2 bits": Layout(_gptq(2, 64, False), gptq(2, 64, False, 1)),
    "gptq 3 bits": Layout(_gptq(3, 64, True), gptq(3, 64, True, 1)),
    "gptq by row": Layout(_gptq(8, -1, True), gptq(8, -1, True, 1)),
    "auto-round": Layout(
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4, "group_size": 64}, awq
    ),
    "compressed-tensors int4": Layout(
        _compressed_tensors("pack-quantized", _numbers("int", 4, "group"), None), packed(4, 64, True)
    ),
    "compressed-tensors int4 with zero points": Layout(
        _compressed_tensors("pack-quantized", _numbers("int", 4, "group", symmetric=False), None), packed(4, 64, False)
    ),
    "compressed-tensors int4 by row": Layout(
        _compressed_tensors("pack-quantized", _numbers("int", 4, "channel", symmetric=False), None),
        packed(4, -1, False),
    ),
    "modelopt int8": Layout(_modelopt("W8A16"), in_bytes(_INT8, True, torch.float32, (-1,))),
    "compressed-tensors fp8": Layout(
        _compressed_tensors("float-quantized", _numbers("float", 8, "tensor"), _numbers("float", 8, "tensor")),
        in_bytes(_FP8, False, torch.bfloat16, (1,)),
        static(_FP8),
        _input_scale(_FP8, (1,)),
    ),
    "compressed-tensors fp8 by row": Layout(
        _compressed_tensors(
            "float-quantized", _numbers("float", 8, "channel"), _numbers("float", 8, "token", dynamic=True)
        ),
        in_bytes(_FP8, True, torch.bfloat16, (-1, 1)),
        by_token(_FP8),
    ),
    "compressed-tensors int8": Layout(
        _compressed_tensors("int-quantized", _numbers("int", 8, "channel"), _numbers("int", 8, "token", dynamic=True)),
        in_bytes(_INT8, True, torch.bfloat16, (-1, 1)),
        by_token(_INT8),
    ),
    "compressed-tensors int8 static": Layout(
        _compressed_tensors("int-quantized", _numbers("int", 8, "channel"), _numbers("int", 8, "tensor")),
        in_bytes(_INT8, True, torch.bfloat16, (-1, 1)),
        static(_INT8),
        _input_scale(_INT8, (1,)),
    ),
}


def matrices(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """The dequantized matrices of quantized layers, by layer name."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    return {name: layer.weight.detach().float().numpy() for name, layer in layers.items()}
