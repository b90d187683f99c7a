"""Measures how well the tensors and the config of a source fit a family, and which family they fit best."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtllm_lite.common.printable import one_line
from trtllm_lite.common.vocabulary import PLAIN_DTYPES
from trtllm_lite.convert.family import Family, all_families, find_model_type, nearest_by_name
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.matching import Mismatch, compare, ranges
from trtllm_lite.convert.sources.safetensors_file import TensorInfo
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.convert.sources.source_tensors import TOKEN_LISTS
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.dtypes import ONNX
from trtllm_lite.network.graph import Network
from trtllm_lite.network.model import Model, network_of

_LAYER = re.compile(r"model\.layers\.(\d{1,9})\.")
_STORED_LAYER = re.compile(r"(?:^|.*?\.)(?:layers|blk)\.(\d{1,9})\.")
# Keys that say of which kind each layer is.
_LAYER_KINDS = (
    *("layer_types", "layers_block_type", "hybrid_override_pattern", "attn_layer_indices", "full_attn_idxs"),
    *("linear_attn_config", "full_attention_interval"),
)


@dataclass(frozen=True)
class Fit:
    """The comparison of a source with a family; ``unread`` are keys that switch on something the family lacks."""

    family: Family
    mismatch: Mismatch
    unread: tuple[str, ...]

    def report(self) -> str:
        """One line per kind of difference; empty if there is none."""
        lines = [self.mismatch.report()] if self.mismatch.count else []
        lines += [f"unknown config keys: {', '.join(self.unread)}"] if self.unread else []
        return "".join(f"\n  {line}" for line in lines)


def nearest_fit(source: Source) -> Fit | None:
    """The fit of the family with the fewest differing tensors; the most similar name or model_type breaks ties.

    None if the tensors are too few for a model of the config's size.
    """
    names = source.config.get("architectures") or [str(source.config.get("model_type"))]
    [alike, *_], typed = nearest_by_name(names[0]), find_model_type(str(source.config.get("model_type")))
    fits = [fit for family in all_families().values() if (fit := _fit(family, source)) is not None]

    def distance(fit: Fit) -> tuple[int, bool, bool]:
        return fit.mismatch.count, alike not in fit.family.all_architectures, fit.family is not typed

    return min(fits, key=distance, default=None)


def unsupported(architectures: Sequence[str], source: Source | None = None) -> ConvertError:
    """The error for a model of no known family: it names the families that are nearest by name and by tensors."""
    fit, nearest = None if source is None else nearest_fit(source), ""
    if fit is not None:
        count = fit.mismatch.count
        verdict = f"{count} of its tensors differ" if count else "all its tensors fit"
        nearest = f"  nearest by tensors: the family {fit.family.name} ({verdict}){fit.report()}\n"
    return ConvertError(
        f"architecture {', '.join(map(one_line, architectures))} is not supported, expected one of those that "
        "docs/reference/families.md lists\n"
        f"  nearest by name: {', '.join(nearest_by_name(architectures[0]))}\n{nearest}"
        "  to add a family: docs/contributing/family.md"
    )


def _fit(family: Family, source: Source) -> Fit | None:
    fields = ConfigFields(family.config_of(source.config, source.tensors))
    model = family.read_model(fields)
    if model.sizes.num_hidden_layers > len(source.tensors):
        return None
    network = network_of(model, ONNX["float32"])
    return Fit(family, compare_tensors(named_for(family, source), family, model, network), tuple(fields.unread()))


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
