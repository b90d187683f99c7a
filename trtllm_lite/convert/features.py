"""Adds the features for a draft head to a model, and gives a draft head the tensors it takes from its model."""

from dataclasses import replace
from typing import Any

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.drafting import Features
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.prediction import LastState
from trtllm_lite.network.streams import STREAMS, EmbeddingOfStreams
from trtllm_lite.network.weight_expression import SourceTensor

FC = "fc.weight"
LAYER_SETTINGS = "eagle_config"
NUM_FEATURES = 3  # layers whose outputs are features
_LAYERS = "eagle_aux_hidden_state_layer_ids"


def with_features(source: Source, decoder: Decoder, head: Source) -> tuple[Source, Decoder]:
    """The model of ``source`` with the features that ``head`` drafts from, and its tensors with the head's ``fc``.

    Raises ConvertError if the two do not fit.
    """
    hidden, info = decoder.sizes.hidden_size, head.tensors.get(FC)
    if info is None or info.shape != (hidden, NUM_FEATURES * hidden):
        raise ConvertError(
            f"expected {head.description} to be an EAGLE-3 head with {FC} of shape {[hidden, NUM_FEATURES * hidden]}, "
            f"for {source.description}, found {'none' if info is None else list(info.shape)}: pass a head of this model"
        )
    if isinstance(decoder.embedding, EmbeddingOfStreams):
        raise ConvertError(
            f"expected a model with one residual stream, from which {head.description} drafts, found {STREAMS} in "
            f"{source.description}: leave out --draft_model_dir"
        )
    layers = _layers(head, decoder.sizes.num_hidden_layers)
    weight = SourceTensor(FC, info.shape)
    parts, scale = weight.split(*[hidden] * len(layers), axis=1), decoder.stream_scale
    linears = tuple(Linear(part if scale == 1 else part.affine(scale)) for part in parts)
    return _with_tensor(source, FC, head, FC), replace(decoder, features=Features(layers, linears))


def with_last_state(decoder: Decoder, predictor: Decoder, head: Source) -> Decoder:
    """Return the model ``decoder`` with the features that ``predictor``, the drafting layer of ``head``, reads.

    Raises ConvertError if the two do not fit.
    """
    sizes = [(each.sizes.hidden_size, each.sizes.vocab_size) for each in (decoder, predictor)]
    if sizes[0] != sizes[1]:
        raise ConvertError(
            f"expected {head.description} to have the model's hidden_size and vocab_size, {sizes[0]}, found "
            f"{sizes[1]}: pass the model itself"
        )
    return replace(decoder, features=LastState())


def with_embedding(source: Source, family: Family, target: Source, target_family: Family) -> Source:
    """Return the head ``source`` with the embedding of the model it was made for, unless it has its own.

    Raises ConvertError if that model has none.
    """
    own, of_target = (f"{each.tensor_names['embedding']}.weight" for each in (family, target_family))
    if own in source.tensors:
        return source
    if of_target not in target.tensors or of_target in target.blocks:
        raise ConvertError(
            f"expected {target.description} to have the embedding {of_target} in a plain type, found none: pass the "
            "model that the head was made for, not quantized"
        )
    return _with_tensor(source, own, target, of_target)


def _with_tensor(source: Source, name: str, other: Source, its_name: str) -> Source:
    def read(wanted: str) -> Any:
        return other.read(its_name) if wanted == name else source.read(wanted)

    return replace(source, tensors={**source.tensors, name: other.tensors[its_name]}, read=read)


def _layers(head: Source, num_layers: int) -> tuple[int, ...]:
    """The layers whose inputs are features: the head's choice, or by default 2, the middle, the third last."""
    settings = head.config.get(LAYER_SETTINGS)
    found = settings.get(_LAYERS) if isinstance(settings, dict) else None
    if found is None:
        found = list({2, num_layers // 2, num_layers - 3})
    if not isinstance(found, list) or not all(type(layer) is int for layer in found):
        raise ConvertError(f"expected {_LAYERS} of {head.description} to be numbers of layers, found {shown(found)}")
    layers = sorted(found)
    if len(set(layers)) != NUM_FEATURES or layers[0] < 0 or layers[-1] >= num_layers:
        raise ConvertError(
            f"expected {NUM_FEATURES} different numbers of layers from 0 to {num_layers - 1}, found {layers}: set "
            f"{_LAYERS} in {LAYER_SETTINGS} of the config of {head.description}"
        )
    return tuple(layers)
