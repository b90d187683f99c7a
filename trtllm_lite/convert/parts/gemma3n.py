"""Makes the parts of Gemma 3n's text models (https://ai.google.dev/gemma/docs/gemma-3n; modeling_gemma3n.py of
transformers).

Layers are between four residual streams (AltUp, arXiv 2301.13310) and add a product of two narrow matrices (LAuReL,
arXiv 2411.07501); the gates of the first layers are cut. What Gemma 4 has as well is in ``gemma4.py``.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_layer_types, read_sizes
from trtllm_lite.convert.fields.rope import read_ropes_by_layer_type
from trtllm_lite.convert.parts.gemma4 import FULL, SLIDING, Gemma4Parts, read_num_sharing
from trtllm_lite.convert.parts.usual import rms_norm
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.errors import shown
from trtllm_lite.network.decoder import Sizes
from trtllm_lite.network.layer_inputs import LayerInputMlp
from trtllm_lite.network.layers import Residual
from trtllm_lite.network.linear import Linear, LowRankLinear
from trtllm_lite.network.mlp import GatedMlp, Gating
from trtllm_lite.network.streams import (
    STREAMS,
    CorrectionWeights,
    CutActivation,
    EmbeddingOfStreams,
    Mix,
    NormOfStreams,
    PredictionWeights,
    Router,
    StreamsLayer,
)
from trtllm_lite.network.weight_expression import RowsOrFirst

_THETAS = {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)}
_SPARSE_LAYERS, _SPARSITY = 10, 0.95  # the layers that are sparse by default, and the share of zeros


@dataclass(frozen=True)
class Gemma3nParts(Gemma4Parts):
    """The parts; ``widths`` has the inner features of each layer's MLP, ``sparsities`` the share that its cut leaves
    out. The low-rank product has ``rank`` inner features. With ``scales_first`` the first stream is multiplied by
    weights for the block of the layer's own input.
    """

    widths: tuple[int, ...]
    sparsities: tuple[float, ...]
    rank: int
    scales_first: bool

    @classmethod
    def read(cls, config: ConfigFields, names: dict[str, str]) -> "Gemma3nParts":
        """Read the config."""
        config.expect("altup_num_inputs", STREAMS)
        config.expect("altup_active_idx", 0)
        for of_training in ("altup_coef_clip", "altup_lr_multiplier", "query_pre_attn_scalar"):
            config.take(of_training)  # scores are not scaled, and coefficients are not clipped after training
        widths = config.integers_by_layer("intermediate_size", config.take("num_hidden_layers"))
        sizes = read_sizes(config, head_dim=256)
        count = sizes.num_hidden_layers
        slides = read_layer_types(config, [(number + 1) % 5 != 0 for number in range(count)])
        kinds = tuple(SLIDING if slide else FULL for slide in slides)
        return cls(
            sizes,
            Tensors(names),
            rms_norm(config),
            kinds,
            dict.fromkeys((SLIDING, FULL), sizes.heads),
            read_ropes_by_layer_type(config, sizes.head_dim, sizes.max_position_embeddings, _THETAS),
            config.integer("sliding_window", 512),
            read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
            config.number("rms_norm_eps", 1e-6),
            config.flag("attention_bias"),
            read_num_sharing(config, kinds, 15),
            keys_are_values=False,
            input_size=config.integer("hidden_size_per_layer_input", 256),
            widths=tuple(widths) if len(widths) == count else (sizes.intermediate_size,) * count,
            sparsities=_sparsities(config, sizes),
            rank=config.integer("laurel_rank", 64),
            scales_first=config.flag("altup_correct_scale", True),
        )

    def streams_layer(self, tensors: Tensors, number: int) -> StreamsLayer:
        """Layer ``number``."""
        hidden, size = self.sizes.hidden_size, self.input_size
        gate, out = tensors.linear("input_gate", size, hidden), tensors.linear("input_projection", hidden, size)
        down, up = tensors.linear("laurel_down", self.rank, hidden), tensors.linear("laurel_up", hidden, self.rank)
        mlp_norm, mlp_post_norm = (self.norm(tensors, role, hidden) for role in ("mlp_norm", "mlp_post_norm"))
        router = Router(tensors.weight("router", STREAMS, hidden), tensors.weight("router_norm", hidden))
        predictions = PredictionWeights(tensors.weight("prediction", STREAMS * STREAMS, STREAMS))
        corrections = CorrectionWeights(tensors.weight("correction", STREAMS, STREAMS))
        return StreamsLayer(
            Mix(router, predictions, self.epsilon),
            self.norm(tensors, "attention_norm", hidden),
            self.attention(tensors, number),
            self.norm(tensors, "attention_post_norm", hidden),
            LowRankLinear(down, None, up),
            self.norm(tensors, "laurel_norm", hidden),
            Residual(mlp_norm, self._sparse_mlp(tensors, number), mlp_post_norm),
            Mix(router, corrections, self.epsilon),
            tensors.plain("correct_scale", hidden) if self.scales_first else None,
            LayerInputMlp(gate, out, self.activation),
            self.norm(tensors, "input_post_norm", hidden),
        )

    def streams_embedding(self, config: ConfigFields) -> EmbeddingOfStreams:
        """The embedding of four streams, with the inputs of layers; tokens without own inputs have those of token 0."""
        sizes, wide = self.sizes, len(self.kinds) * self.input_size
        vocab = config.integer("vocab_size_per_layer_input", 262144)
        known = self.tensors.weight("input_embedding", vocab, wide)
        own = known if vocab == sizes.vocab_size else RowsOrFirst(known, sizes.vocab_size)
        table = self.tensors.weight("embedding", sizes.vocab_size, sizes.hidden_size)
        projections = self._projections("stream_projection")
        return EmbeddingOfStreams(table, sizes.hidden_size**0.5, None, True, self.layer_inputs(own), projections)

    def streams_norm(self) -> NormOfStreams:
        """The last norm, of the mean of the streams."""
        final = self.norm(self.tensors, "final_norm", self.sizes.hidden_size)
        return NormOfStreams(self._projections("stream_output"), final)

    def _projections(self, role: str) -> tuple[Linear, ...]:
        hidden = self.sizes.hidden_size
        streams = (self.tensors.of_expert(number) for number in range(STREAMS - 1))
        return tuple(tensors.linear(role, hidden, hidden) for tensors in streams)

    def _sparse_mlp(self, tensors: Tensors, number: int) -> GatedMlp:
        wide, sparsity = self.widths[number], self.sparsities[number]
        mlp = self.mlp(tensors, wide)
        if not sparsity:
            return mlp
        factor = NormalDist().inv_cdf(float(np.float32(sparsity)))
        gating: Gating = CutActivation(self.activation, factor, wide)
        return GatedMlp(mlp.gate, mlp.up, mlp.down, gating)


def _sparsities(config: ConfigFields, sizes: Sizes) -> tuple[float, ...]:
    """The share of each layer's gates that become 0; 0 for layers without a cut."""
    count, key = sizes.num_hidden_layers, "activation_sparsity_pattern"
    given = config.take(key)
    if given is None:
        return tuple(_SPARSITY if count > _SPARSE_LAYERS > number else 0.0 for number in range(count))
    are_shares = isinstance(given, list) and all(type(x) in (int, float) and 0 <= x < 1 for x in given)
    if not are_shares or len(given) != count:
        config.problem(key, f"expected {count} numbers from 0 to below 1, found {shown(given)}")
        return (0.0,) * count
    return tuple(map(float, given))
