"""Sources in llama.cpp's GGUF format: one file with metadata, tokenizer and (mostly quantized) tensors.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, read by the ``gguf`` package. Tensors get Hugging
Face's names and row order; quantized blocks are expanded to float32 one tensor at a time.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from trtllm_lite.convert.dtypes import NUMPY
from trtllm_lite.convert.family import Family, all_families
from trtllm_lite.convert.gguf_config import read_config
from trtllm_lite.convert.gguf_header import check_header
from trtllm_lite.convert.gguf_tokenizer import read_tokenizer
from trtllm_lite.convert.safetensors_file import TensorInfo
from trtllm_lite.convert.source import Source
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.weight_expression import halves_from_pairs

# GGUF's tensor names by role (trtllm_lite.convert.source_tensors).
_ROLES = {
    "token_embd": "embedding",
    "output_norm": "final_norm",
    "output": "lm_head",
    "blk.{layer}.attn_norm": "attention_norm",
    "blk.{layer}.attn_q": "q_proj",
    "blk.{layer}.attn_k": "k_proj",
    "blk.{layer}.attn_v": "v_proj",
    "blk.{layer}.attn_q_norm": "q_norm",
    "blk.{layer}.attn_k_norm": "k_norm",
    "blk.{layer}.attn_output": "o_proj",
    "blk.{layer}.ffn_norm": "mlp_norm",
    "blk.{layer}.ffn_gate": "gate_proj",
    "blk.{layer}.ffn_up": "up_proj",
    "blk.{layer}.ffn_down": "down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"  # divisors of the RoPE frequencies, which the config mapping reads
# Blocks of integers with float16 scales expand best to float16; the plain types stay what they are.
_PLAIN_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_QUANTIZED_DTYPE = "float16"


def open_gguf(path: Path) -> Source:
    """Open a GGUF file; ConvertError if it is damaged, of an unknown architecture, or of an unknown tensor type."""
    check_header(path)
    metadata, tensors = _parse(path)
    family = _find_family(path, metadata)
    _check_types(path, tensors.values())
    factors = tensors.pop(ROPE_FACTORS, None)
    frequency_factors = None if factors is None else _expand(factors).tolist()
    config = read_config(metadata, family, tensors, frequency_factors)
    by_name = {_hugging_face_name(name, family): (name, tensor) for name, tensor in tensors.items()}
    heads = {"attn_q": config.get("num_attention_heads"), "attn_k": config.get("num_key_value_heads")}

    def read(name: str) -> NDArray:
        gguf_name, tensor = by_name[name]
        count = heads.get(gguf_name.split(".")[-2])
        values = _expand(tensor)
        return halves_from_pairs(values, count) if count and family.gguf and family.gguf.interleaved_rope else values

    tokenizer, tokenizer_config = read_tokenizer(metadata)
    return Source(
        description=str(path),
        config=config,
        generation={},
        tensors={name: _info(tensor) for name, (_, tensor) in by_name.items()},
        read=read,
        tokenizer=tokenizer,
        tokenizer_config=tokenizer_config,
    )


def _parse(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and tensors (memory maps), by name."""
    try:
        reader = gguf.GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # the reader checks little: damage shows as any kind of exception
        raise ConvertError(
            f"expected {path} to be a complete GGUF file, but it cannot be read ({error}): download it again"
        ) from error
    return metadata, {tensor.name: tensor for tensor in reader.tensors}


def _find_family(path: Path, metadata: dict[str, Any]) -> Family:
    architecture = metadata.get("general.architecture")
    known = {family.gguf.architecture: family for family in all_families().values() if family.gguf}
    if architecture not in known:
        raise ConvertError(
            f"{path} has the GGUF architecture {architecture!r}, expected one of {', '.join(sorted(known))}"
        )
    return known[architecture]


def _check_types(path: Path, tensors: Iterable[Any]) -> None:
    unknown = []
    for tensor in tensors:
        try:
            _expand_rows(tensor.data[:1], tensor.tensor_type)
        except NotImplementedError:
            unknown.append(f"{tensor.name} ({tensor.tensor_type.name})")
    if unknown:
        raise ConvertError(f"{path} holds tensors of types that cannot be expanded: {', '.join(sorted(unknown))}")


def _hugging_face_name(name: str, family: Family) -> str:
    """The family's name of a GGUF tensor; names without a role stay, to be reported as unused."""
    stem, _, suffix = name.rpartition(".")
    number = re.match(r"blk\.(\d+)\.", stem)
    layer = number.group(1) if number else ""
    role = _ROLES.get(re.sub(r"^blk\.\d+\.", "blk.{layer}.", stem))
    return name if role is None else f"{family.tensor_names[role].format(layer=layer)}.{suffix}"


def _info(tensor: Any) -> TensorInfo:
    """GGUF lists dimensions fastest first, Hugging Face slowest first."""
    shape = tuple(int(extent) for extent in reversed(tensor.shape))
    return TensorInfo(_PLAIN_TYPES.get(tensor.tensor_type.name, _QUANTIZED_DTYPE), shape)


def _expand(tensor: Any) -> NDArray:
    """The tensor's values in Hugging Face's shape: a view for plain types, float32 for quantized ones."""
    return _expand_rows(tensor.data, tensor.tensor_type).reshape(_info(tensor).shape)


def _expand_rows(data: NDArray, kind: Any) -> NDArray:
    if kind.name in _PLAIN_TYPES:
        return np.asarray(data).view(NUMPY[_PLAIN_TYPES[kind.name]])
    return gguf.quants.dequantize(data, kind)
