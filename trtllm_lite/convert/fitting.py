"""Measures how well the tensors and the config of a source fit a family, and which family they fit best."""

import re
from collections.abc import Mapping

from trtllm_lite.common.printable import one_line
from trtllm_lite.common.vocabulary import PLAIN_DTYPES
from trtllm_lite.convert.family import Family
from trtllm_lite.convert.matching import Mismatch, compare, ranges
from trtllm_lite.convert.sources.safetensors_file import TensorInfo
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.convert.sources.source_tensors import TOKEN_LISTS
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.graph import Network
from trtllm_lite.network.model import Model

_LAYER = re.compile(r"model\.layers\.(\d{1,9})\.")
_STORED_LAYER = re.compile(r"(?:^|.*?\.)(?:layers|blk)\.(\d{1,9})\.")
# Keys that say of which kind each layer is.
_LAYER_KINDS = (
    *("layer_types", "layers_block_type", "hybrid_override_pattern", "attn_layer_indices", "full_attn_idxs"),
    *("linear_attn_config", "full_attention_interval"),
)


def check_num_layers(source: Source, model: Model) -> None:
    """Raise ConvertError if the config has implausibly many layers, before a network is built of them."""
    layers, tensors = model.sizes.num_hidden_layers, len(source.tensors)
    if layers > tensors:
        raise ConvertError(
            f"the config of {source.description} says {layers} layers, but there are {tensors} tensors, expected one "
            "or more for each layer: the weights are not all there, or the config is another model's"
        )


def named_for(family: Family, source: Source) -> Source:
    """Return ``source`` with the family's ``optional_prefix`` added to its tensor names if all of them lack it."""
    return source.with_prefix(family.optional_prefix, but=family.tensor_names.get("lm_head", ""))


def informative(source: Source, family: Family, model: Model) -> dict[str, TensorInfo]:
    """The tensors of ``source`` that carry information about ``model``, without drafting layers (MTP) at its end."""
    drafting = source.config.get(family.drafting_layers) if family.drafting_layers else None
    first = model.sizes.num_hidden_layers
    behind = range(first, first + drafting) if type(drafting) is int else ()

    def drafts(name: str) -> bool:
        layer = _LAYER.match(name)
        return layer is not None and int(layer[1]) in behind

    return {name: info for name, info in source.tensors.items() if not family.ignores(name) and not drafts(name)}


def misnamed_kinds(source: Source, mismatch: Mismatch) -> str:
    """The key of the config that might tell the kinds of layers wrongly, and for which layers; empty if none does.

    Such a layer lacks tensors that it should have, and has others.
    """
    missing, unused = (
        {int(layer[1]) for name in names if (layer := _STORED_LAYER.match(name))}
        for names in (mismatch.missing, mismatch.unused)
    )
    key = source.kinds_key or next((key for key in _LAYER_KINDS if source.config.get(key) is not None), "")
    if not key or not missing & unused:
        return ""
    layers = ranges(sorted(missing & unused))
    return f"{key}: expected kinds of layers that have the tensors of the source, found others for the layers {layers}"


def check_types(source: Source, tensors: Mapping[str, TensorInfo]) -> None:
    """Raise ConvertError if some of the ``tensors`` are not floating-point, except lists of tokens."""
    others = [
        f"{one_line(source.stored_names(name)[0])} ({info.dtype})"
        for name, info in tensors.items()
        if info.dtype not in PLAIN_DTYPES and name not in TOKEN_LISTS
    ]
    if others:
        listed = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        reason = "the model has no quantization_config"
        if source.quantization:
            reason = f"{source.quantization} does not say what these are"
        raise ConvertError(
            f"expected the tensors of {source.description} to be one of {', '.join(PLAIN_DTYPES)}, found {listed}; "
            f"{reason}: convert from the unquantized checkpoint"
        )


def compare_tensors(source: Source, family: Family, model: Model, network: Network) -> Mismatch:
    """The differences between the tensors of ``source`` that carry information and those that ``network`` needs."""
    read = {tensor.name for weight in network.weights for tensor in weight.expression.sources()}
    found = informative(source, family, model) | {name: source.tensors[name] for name in read & source.tensors.keys()}
    head = f"{family.tensor_names.get('lm_head')}.weight"
    needed = {weight.name for weight in network.weights}
    found = {name: info for name, info in found.items() if name in needed or not _is_zero_bias(source, name)}
    is_tied = isinstance(model, Decoder) and model.has_tied_embeddings
    if is_tied and head in found and _repeats_embedding(source, family, head):
        del found[head]
    return compare(network.weights, found, source.stored_names)


def _is_zero_bias(source: Source, name: str) -> bool:
    """Whether a tensor is an all-zero bias of a quantized layer, which some methods store for layers without bias."""
    layer, _, tensor = name.rpartition(".")
    return tensor == "bias" and f"{layer}.weight" in source.blocks and not source.read(name).any()


def _repeats_embedding(source: Source, family: Family, head: str) -> bool:
    """Whether a model with tied embeddings stores the matrix a second time as its LM head."""
    embedding = f"{family.tensor_names['embedding']}.weight"
    if source.tensors.get(embedding) != source.tensors[head]:
        return False
    return source.read(embedding).tobytes() == source.read(head).tobytes()
