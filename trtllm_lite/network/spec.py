"""What a family says about a model: sizes and switches, no code.

The network is built from this alone; whatever a later stage needs about the computation it reads from the graph.
"""

from dataclasses import dataclass

from trtllm_lite.network.rope import Rope


@dataclass(frozen=True)
class LayerSpec:
    """The switches of one decoder layer.

    ``window`` is the sliding attention window in tokens (a query at position p sees keys at positions > p - window);
    0 means full causal attention. ``qk_norm`` normalises every query and key head before RoPE (Qwen3).
    """

    window: int = 0
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


@dataclass(frozen=True)
class DecoderSpec:
    """A pre-norm decoder: RMSNorm, grouped-query attention with RoPE, SwiGLU; sizes in elements."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    norm_epsilon: float
    rope: Rope
    layers: tuple[LayerSpec, ...]
    tied_embeddings: bool

    @property
    def attention_scale(self) -> float:
        """Factor on query . key: 1/sqrt(head_dim) (arXiv 1706.03762, section 3.2.1)."""
        return self.head_dim**-0.5
