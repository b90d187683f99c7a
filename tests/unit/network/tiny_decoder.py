"""A tiny decoder of the usual blocks, whose source tensors are named as in most Hugging Face models."""

from typing import Any

from trtllm_lite.convert.parts.usual import UsualParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder, Sizes
from trtllm_lite.network.ends import Embedding, Head
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.mlp import ACTIVATIONS
from trtllm_lite.network.norms import RmsNorm
from trtllm_lite.network.rope import Rope

_INV_FREQ = (1.0, 0.1, 0.01)
_TENSORS = Tensors(TENSOR_NAMES)


def _parts(num_layers: int) -> UsualParts:
    sizes = Sizes(11, 12, 7, num_layers, 4, 2, 6, 64)
    return UsualParts(sizes, _TENSORS, lambda tensors, role, size: RmsNorm(tensors.weight(role, size), 1e-5))


def layer(bias: bool = False, head_norms: bool = False, **attention: Any) -> dict[str, Any]:
    """The options of one layer; ``attention`` holds fields of Attention."""
    return {"bias": bias, "head_norms": head_norms, **attention}


def tiny_decoder(*layers: dict[str, Any], tied: bool = True, attention_factor: float = 1.0) -> Decoder:
    """A decoder of ``layers``, each made by :func:`layer`."""
    parts, rope = _parts(len(layers)), Rope(_INV_FREQ, attention_factor)

    def make(tensors: Tensors, number: int) -> Layer:
        options = dict(layers[number])
        bias, head_norms = options.pop("bias"), options.pop("head_norms")
        projections = parts.projections(tensors, bias, bias)
        if head_norms:
            options |= {f"{what}_norm": parts.head_norm(tensors, f"{what[0]}_norm") for what in ("query", "key")}
        attention = Attention(*projections, parts.sizes.heads, **{"rope": rope, **options})
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, ACTIVATIONS["silu"], bias))

    sizes = parts.sizes
    return Decoder(
        sizes,
        Embedding(_TENSORS.weight("embedding", sizes.vocab_size, sizes.hidden_size)),
        parts.layers(make),
        parts.norm(_TENSORS, "final_norm", sizes.hidden_size),
        Head(parts.head(tied)),
    )
