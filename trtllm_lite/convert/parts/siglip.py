"""Makes the parts of vision towers like SigLIP: learned positions, norms before blocks, biases everywhere."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import MAX_LAYERS, read_activation
from trtllm_lite.convert.parts.usual import Projections, UsualParts, layer_norm
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.convert.tower import NORMALIZATION, TEXT_SIZE, normalization_of
from trtllm_lite.network.attention import Heads
from trtllm_lite.network.decoder import Sizes
from trtllm_lite.network.encoder_layers import EncoderAttention, PreNormLayer
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.mlp import Function, PlainMlp, QuickGelu
from trtllm_lite.network.pixels import PatchBias, PatchWeight
from trtllm_lite.network.vision import PatchEmbedding
from trtllm_lite.network.weight_expression import AsRow, Ones, PaddedHeads, ReorderedRows

_HEAD_MULTIPLE = 16  # of the elements of a head, which the kernels of GPUs read
_LAYER = "{prefix}encoder.layers.{{layer}}."
_NAMES = {
    "patches": "{prefix}embeddings.patch_embedding",
    "positions": "{prefix}embeddings.position_embedding",
    "q_proj": f"{_LAYER}self_attn.q_proj",
    "k_proj": f"{_LAYER}self_attn.k_proj",
    "v_proj": f"{_LAYER}self_attn.v_proj",
    "o_proj": f"{_LAYER}self_attn.out_proj",
    "attention_norm": f"{_LAYER}layer_norm1",
    "mlp_norm": f"{_LAYER}layer_norm2",
    "up_proj": f"{_LAYER}mlp.fc1",
    "down_proj": f"{_LAYER}mlp.fc2",
    "final_norm": "{prefix}post_layernorm",
}


_CLASS_NAMES = {"class_token": "{prefix}embeddings.class_embedding", "first_norm": "{prefix}pre_layrnorm"}


@dataclass(frozen=True)
class TowerDefaults:
    """What transformers takes for keys that a vision config lacks, and how many tokens come before patches."""

    patch_size: int
    hidden_size: int
    heads: int
    activation: str
    epsilon: float
    class_tokens: int = 0


SIGLIP = TowerDefaults(32, 1152, 16, "gelu_pytorch_tanh", 1e-6)
CLIP = TowerDefaults(32, 768, 12, "quick_gelu", 1e-5, class_tokens=1)


def clip_names(prefix: str) -> dict[str, str]:
    """Names of CLIP's tensors by role, below ``prefix``; "pre_layrnorm" is transformers' own spelling."""
    return {**siglip_names(prefix), **{role: name.format(prefix=prefix) for role, name in _CLASS_NAMES.items()}}


def siglip_names(prefix: str) -> dict[str, str]:
    """Names of tensors by role, below ``prefix``."""
    return {role: name.format(prefix=prefix) for role, name in _NAMES.items()}


@dataclass(frozen=True)
class SiglipParts(UsualParts):
    """Makes the parts of SigLIP's tower. ``side`` is the number of patches along each side of an image."""

    activation: Function
    patch_size: int
    side: int

    @classmethod
    def read(cls, config: ConfigFields, names: Mapping[str, str], defaults: TowerDefaults = SIGLIP) -> "SiglipParts":
        """Read the keys of the vision config, which transformers leaves out if they have their defaults."""
        config.expect("num_channels", 3)
        image, patch = config.integer("image_size", 224), config.integer("patch_size", defaults.patch_size)
        heads = config.integer("num_attention_heads", defaults.heads)
        hidden = config.integer("hidden_size", defaults.hidden_size)
        if hidden % heads:
            config.problem("hidden_size", f"expected a multiple of num_attention_heads ({heads}), found {hidden}")
        side = max(image // patch, 1)
        sizes = Sizes(
            vocab_size=1,
            hidden_size=hidden,
            intermediate_size=config.integer("intermediate_size", 3072),
            num_hidden_layers=config.integer("num_hidden_layers", 12, maximum=MAX_LAYERS),
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=hidden // heads,
            max_position_embeddings=side * side + defaults.class_tokens,
        )
        activation = _read_activation(config, defaults.activation)
        norm = layer_norm(config.number("layer_norm_eps", defaults.epsilon))
        return cls(sizes, Tensors(names), norm, activation, patch, side)

    def embedding(self, config: ConfigFields, block: int = 1) -> PatchEmbedding:
        """The embedding of patches, which come in blocks of ``block`` × ``block``, in row-major order."""
        hidden, patch = self.sizes.hidden_size, self.patch_size
        normalization = normalization_of(config.take(NORMALIZATION))
        kernel = self.tensors.weight("patches", hidden, 3, patch, patch)
        bias = PatchBias(kernel, normalization, self.tensors.bias("patches", hidden))
        positions = self.tensors.weight("positions", self.side**2, hidden)
        in_blocks = ReorderedRows(positions, block_order(self.side, self.side, block))
        no_class = Ones((1, hidden)).affine(scale=0.0)
        return PatchEmbedding(Linear(PatchWeight(kernel, normalization), bias), no_class, in_blocks)

    def embedding_behind_class(self, config: ConfigFields) -> PatchEmbedding:
        """The embedding of a class token and patches behind it, row by row, whose convolution has no bias (CLIP)."""
        hidden, patch = self.sizes.hidden_size, self.patch_size
        normalization = normalization_of(config.take(NORMALIZATION))
        kernel = self.tensors.weight("patches", hidden, 3, patch, patch)
        projection = Linear(PatchWeight(kernel, normalization), PatchBias(kernel, normalization, None))
        positions = self.tensors.weight("positions", self.side**2 + 1, hidden)
        return PatchEmbedding(projection, AsRow(self.tensors.plain("class_token", hidden)), positions)

    def tower_layers(self, count: int | None = None) -> tuple[PreNormLayer, ...]:
        """The first ``count`` layers, or all."""
        numbers = range(self.sizes.num_hidden_layers if count is None else count)
        return tuple(self._layer(self.tensors.of_layer(number)) for number in numbers)

    def text_size(self, config: ConfigFields) -> int:
        """The hidden size of the decoder."""
        return config.integer(TEXT_SIZE)

    def _layer(self, tensors: Tensors) -> PreNormLayer:
        hidden, wide = self.sizes.hidden_size, self.sizes.intermediate_size
        heads = self.sizes.heads
        padded = replace(heads, head_dim=-(-heads.head_dim // _HEAD_MULTIPLE) * _HEAD_MULTIPLE)
        projections = self.projections(tensors, qkv_bias=True, output_bias=True)
        if padded != heads:
            projections = _padded(projections, padded)
        up, down = tensors.linear("up_proj", wide, hidden, True), tensors.linear("down_proj", hidden, wide, True)
        return PreNormLayer(
            EncoderAttention(*projections, padded, used=heads.head_dim),
            self.norm(tensors, "attention_norm", hidden),
            PlainMlp(up, down, self.activation),
            self.norm(tensors, "mlp_norm", hidden),
        )


def _padded(projections: Projections, heads: Heads) -> Projections:
    """Projections of heads with zeros behind their elements, which add nothing to scores and outputs."""

    def padded(linear: Linear) -> Linear:
        assert linear.bias is not None
        return Linear(*(PaddedHeads(part, heads.num_heads, heads.head_dim) for part in (linear.weight, linear.bias)))

    query, key, value, output = projections
    columns = PaddedHeads(output.weight.transpose(), heads.num_heads, heads.head_dim).transpose()
    return Projections(padded(query), padded(key), padded(value), Linear(columns, output.bias))


def _read_activation(config: ConfigFields, default: str) -> Function:
    name = config.take("hidden_act")
    is_quick = "quick_gelu" in (name, default if name is None else None)
    return QuickGelu() if is_quick else read_activation(config, default=default)


def block_order(rows: int, columns: int, block: int) -> tuple[int, ...]:
    """The row-major numbers of ``rows`` × ``columns`` patches, block by block of ``block`` × ``block``."""
    return tuple(
        (top + row) * columns + left + column
        for top in range(0, rows - rows % block, block)
        for left in range(0, columns - columns % block, block)
        for row in range(block)
        for column in range(block)
    )
