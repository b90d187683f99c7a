"""Makes the layer with which a model drafts for itself (MTP): it predicts a further token.

The layer is a network of its own, with the model's embedding and LM head. To draft several tokens it is applied to its
own output, the state after its final norm.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.drafting import FIRST_POSITION
from trtllm_lite.network.ends import Embedding, Head
from trtllm_lite.network.layers import Block
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.prediction import PredictingLayer

_LAYER = "model.layers.{layer}."


@dataclass(frozen=True)
class PredictorNames:
    """What a family calls the layer ``layer`` (a prefix, with {layer} for its number) and the tensors around it.

    ``embedding_norm`` and ``state_norm`` are of the two inputs, which ``projection`` joins; ``final_norm`` is the last.
    """

    layer: str
    embedding_norm: str
    state_norm: str
    projection: str
    final_norm: str

    def by_role(self, names: Mapping[str, str]) -> dict[str, str]:
        """The names of the layer's tensors by role; ``names`` are those of the model."""
        own = {role: name.replace(_LAYER, self.layer) for role, name in names.items()}
        ends = ("embedding_norm", "state_norm", "projection", "final_norm")
        return own | {role: getattr(self, role) for role in ends}


def predicting_decoder(
    config: ConfigFields,
    parts: LlamaParts,
    layer: Callable[[Tensors], tuple[Attention, Block]],
    *,
    state_first: bool,
) -> Decoder:
    """The decoder of the layer whose attention and MLP ``layer`` makes; other tensors are those of ``parts``.

    With ``state_first`` the columns of the projection for states come before those for embeddings.
    """
    sizes, tensors = parts.sizes, parts.tensors.of_layer(0)
    hidden = sizes.hidden_size
    halves = [Linear(half) for half in tensors.weight("projection", hidden, 2 * hidden).split(hidden, hidden, axis=1)]
    of_state, of_embedding = halves if state_first else reversed(halves)
    attention, mlp = layer(tensors)
    predicting = PredictingLayer(
        parts.norm(tensors, "embedding_norm", hidden),
        parts.norm(tensors, "state_norm", hidden),
        of_embedding,
        of_state,
        parts.pre_norm_layer(tensors, replace(attention, first_position=FIRST_POSITION), mlp),
    )
    return Decoder(
        replace(sizes, num_hidden_layers=1),
        Embedding(tensors.weight("embedding", sizes.vocab_size, hidden)),
        (predicting,),
        parts.norm(tensors, "final_norm", hidden),
        Head(parts.head(config.flag("tie_word_embeddings"))),
        reads_features=True,
        hidden_is_normed=True,
    )
