"""Makes the layers of Qwen's models with Gated DeltaNet: recurrent layers, and attention whose output has a gate."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from trtllm_lite.common.vocabulary import RECURRENT
from trtllm_lite.convert.family import GGUF_DRAFTING_TENSORS, ROTARY_BUFFERS, Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.delta_gguf import DRAFTING_LAYERS
from trtllm_lite.convert.parts.gated_delta_net import DeltaParts, read_recurrent_layers
from trtllm_lite.convert.parts.predictor import PredictorNames, predicting_decoder
from trtllm_lite.convert.parts.usual import LlamaParts, one_plus_rms_norm
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.gated_delta_net import DeltaHeads, GatedDeltaNet
from trtllm_lite.network.layers import Block, Layer

_HEADS = DeltaHeads(num_key_heads=16, num_value_heads=32, key_dim=128, value_dim=128)
# The tensors of the layer with which published models draft (MTP), which the model itself is made without.
UNUSED_TENSORS = (*ROTARY_BUFFERS, r"mtp\..*", *GGUF_DRAFTING_TENSORS)
_PREDICTOR = PredictorNames(
    layer="mtp.layers.{layer}.",
    embedding_norm="mtp.pre_fc_norm_embedding",
    state_norm="mtp.pre_fc_norm_hidden",
    projection="mtp.fc",
    final_norm="mtp.norm",
)
_HAS_PREDICTOR = "has_drafting_layer"

# Makes the MLP of a layer with these tensors and this number.
MakeMlp = Callable[[Tensors, int], Block]


@dataclass(frozen=True)
class QwenHybrid:
    """The parts of a model, whose layers are ``recurrent`` or have attention, with ``bias`` or without."""

    parts: LlamaParts
    delta: DeltaParts
    recurrent: list[bool]
    bias: bool

    @classmethod
    def read(cls, config: ConfigFields, names: Mapping[str, str], by_axes: bool = False) -> "QwenHybrid":
        """Read the config; every fourth layer has attention unless ``layer_types`` says otherwise.

        With ``by_axes`` the config may say how RoPE shares the elements of heads out among three positions of a token.
        """
        parts = LlamaParts.read(config, names, head_dim=256, rope=RopeDefaults(part=0.25, by_axes=by_axes))
        parts = replace(parts, norm=one_plus_rms_norm(config))
        for key, value in (("hidden_act", "silu"), ("use_sliding_window", False)):
            config.expect(key, value)
        config.rename({"num_nextn_predict_layers": DRAFTING_LAYERS})
        config.integer(DRAFTING_LAYERS, 0, minimum=0)
        config.expect("mtp_use_dedicated_embeddings", False)
        recurrent = read_recurrent_layers(config, parts.sizes.num_hidden_layers)
        return cls(parts, DeltaParts.read(config, parts, _HEADS), recurrent, config.flag("attention_bias"))

    def decoder(self, config: ConfigFields, mixer: Callable[[Tensors], GatedDeltaNet], mlp: MakeMlp) -> Decoder:
        """The decoder whose recurrent layers have the block that ``mixer`` makes."""

        def layer(tensors: Tensors, number: int) -> Layer:
            block = mlp(tensors, number)
            if self.recurrent[number]:
                return replace(self.parts.pre_norm_layer(tensors, mixer(tensors), block), name=RECURRENT)
            return self.parts.pre_norm_layer(tensors, self._attention(tensors), block)

        return self.parts.decoder(config, self.parts.layers(layer))

    def predictor(self, config: ConfigFields, mlp: MakeMlp) -> Decoder:
        """The decoder of the layer with which the model drafts; its ``mlp`` is that of a layer 0, as in vLLM."""
        if not config.flag(_HAS_PREDICTOR):
            config.problem(
                DRAFTING_LAYERS,
                "expected the tensors of a layer that predicts a further token (MTP), such as mtp.fc.weight, found "
                "none: take a checkpoint that has them; fine-tuning may have left them out",
            )
        config.expect(DRAFTING_LAYERS, 1)
        return predicting_decoder(
            config, self.parts, lambda tensors: (self._attention(tensors), mlp(tensors, 0)), state_first=False
        )

    def _attention(self, tensors: Tensors) -> Attention:
        """Attention with a gate, which is fused with the queries: of each head first its query, then its gate."""
        parts, heads, hidden = self.parts, self.parts.sizes.heads, self.parts.sizes.hidden_size
        fused = tensors.linear("q_proj", 2 * heads.num_heads * heads.head_dim, hidden, self.bias)
        query, gate = fused.split_heads(heads.num_heads, heads.head_dim, heads.head_dim)
        norms = parts.head_norm(tensors, "q_norm"), parts.head_norm(tensors, "k_norm")
        projections = parts.projections(tensors, self.bias, self.bias)._replace(query=query)
        return replace(parts.attention(projections, 0, *norms), gate=gate)


def predictor_names(names: Mapping[str, str]) -> dict[str, str]:
    """The names of the tensors of the layer with which a model drafts, by role; ``names`` are the model's."""
    return _PREDICTOR.by_role(names)


def predictor_family(
    name: str,
    architectures: tuple[str, ...],
    read: Callable[[ConfigFields], Decoder],
    names: Mapping[str, str],
    layouts: Mapping[str, str] = {},
) -> Family:
    """The family of the layer with which the models of the family ``name`` draft, whose tensors have ``names``."""
    return Family(
        name=f"{name}_mtp",
        architectures=architectures,
        read_model=read,
        tensor_names=names,
        ignored_tensors=(*ROTARY_BUFFERS, r"model\.layers\..*", r"model\.norm\.weight"),
        drafts=True,
        layouts={_HAS_PREDICTOR: r"mtp\.fc\.weight", **layouts},
    )


def check_later_keys(config: ConfigFields) -> None:
    """Refuse other values of the keys that configs have from Qwen3.5 on than those that every published model has.

    ``output_gate_type`` names the activation of the gates of recurrent layers.
    """
    config.expect("attn_output_gate", True)
    config.expect("output_gate_type", "swish", "silu")
