"""The ordered pipeline from the standard network to fused operators over packed tokens.

Each pass is numerically neutral. remove_padding comes first, so that all others see plain [rows, features] matrices;
linear comes before the passes that build on it, and rowwise takes the operators that are left. last_token_gather needs
fused operators, whose schemas say whether they are row-wise, so only the pass for features comes after it.
"""

from trtllm_lite.builder.passes.add_norm import ADD_NORM
from trtllm_lite.builder.passes.causal_conv import CAUSAL_CONV
from trtllm_lite.builder.passes.contract import Decision, GraphPass, PassError
from trtllm_lite.builder.passes.embedding import EMBEDDING
from trtllm_lite.builder.passes.features import STORE_FEATURES
from trtllm_lite.builder.passes.gated_delta_net import GATED_DELTA_NET
from trtllm_lite.builder.passes.gather_columns import GATHER_COLUMNS
from trtllm_lite.builder.passes.grouped_norm import GROUPED_NORM
from trtllm_lite.builder.passes.head_layer_norm import HEAD_LAYER_NORM
from trtllm_lite.builder.passes.last_token_gather import LAST_TOKEN_GATHER
from trtllm_lite.builder.passes.latent_attention import LATENT_ATTENTION
from trtllm_lite.builder.passes.linear import LINEAR
from trtllm_lite.builder.passes.linear_activation import LINEAR_ACTIVATION
from trtllm_lite.builder.passes.mamba2 import MAMBA2
from trtllm_lite.builder.passes.merge_gate_up import MERGE_GATE_UP
from trtllm_lite.builder.passes.merge_projections import MERGE_PROJECTIONS
from trtllm_lite.builder.passes.merge_qkv import MERGE_QKV
from trtllm_lite.builder.passes.merge_rows import MERGE_ROWS
from trtllm_lite.builder.passes.moe import MOE
from trtllm_lite.builder.passes.paged_attention import PAGED_ATTENTION
from trtllm_lite.builder.passes.patch_rows import PATCH_ROWS
from trtllm_lite.builder.passes.pooling import POOLING
from trtllm_lite.builder.passes.position_embedding import POSITION_EMBEDDING
from trtllm_lite.builder.passes.quantize_rows import QUANTIZE_ROWS
from trtllm_lite.builder.passes.query_key_norm import QUERY_KEY_NORM
from trtllm_lite.builder.passes.ragged_attention import RAGGED_ATTENTION
from trtllm_lite.builder.passes.remove_padding import REMOVE_PADDING
from trtllm_lite.builder.passes.rotary_table import ROTARY_TABLE
from trtllm_lite.builder.passes.rowwise import ROWWISE
from trtllm_lite.builder.passes.shared_experts import SHARED_EXPERTS
from trtllm_lite.builder.passes.sigmoid_gate import SIGMOID_GATE
from trtllm_lite.builder.passes.streams import STREAMS

PIPELINE = (
    REMOVE_PADDING,
    STREAMS,
    EMBEDDING,
    POSITION_EMBEDDING,
    ROTARY_TABLE,
    MOE,
    SHARED_EXPERTS,
    SIGMOID_GATE,
    CAUSAL_CONV,
    GATED_DELTA_NET,
    MAMBA2,
    GROUPED_NORM,
    LATENT_ATTENTION,
    LINEAR,
    GATHER_COLUMNS,
    MERGE_QKV,
    MERGE_PROJECTIONS,
    QUERY_KEY_NORM,
    HEAD_LAYER_NORM,
    MERGE_GATE_UP,
    LINEAR_ACTIVATION,
    QUANTIZE_ROWS,
    PAGED_ATTENTION,
    ADD_NORM,
    ROWWISE,
    LAST_TOKEN_GATHER,
    STORE_FEATURES,
)

# The same pipeline for encoders, which have no caches and no logits.
ENCODER_PIPELINE = (
    REMOVE_PADDING,
    POOLING,
    EMBEDDING,
    POSITION_EMBEDDING,
    ROTARY_TABLE,
    LINEAR,
    GATHER_COLUMNS,
    MERGE_QKV,
    MERGE_GATE_UP,
    LINEAR_ACTIVATION,
    QUANTIZE_ROWS,
    RAGGED_ATTENTION,
    ADD_NORM,
    ROWWISE,
)

# The same pipeline for vision towers, whose tokens are patches of images, and whose rows are not pooled.
TOWER_PIPELINE = (
    REMOVE_PADDING,
    PATCH_ROWS,
    MERGE_ROWS,
    *(one for one in ENCODER_PIPELINE if one not in (REMOVE_PADDING, POOLING, EMBEDDING)),
)

__all__ = ["ENCODER_PIPELINE", "PIPELINE", "TOWER_PIPELINE", "Decision", "GraphPass", "PassError"]
