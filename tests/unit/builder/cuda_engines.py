"""GPU engines of the small random networks of this folder; building one needs NVRTC and no GPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from tests.timing_caches import tiles_first
from tests.unit.builder.checkpoints import save_checkpoint
from tests.unit.builder.networks import Shape, network
from tests.unit.quantize.made_up import made_up
from trtllm_lite.builder import build_engine
from trtllm_lite.builder.cache_dtype import AUTO_DTYPE
from trtllm_lite.builder.cuda.planning import Lowered, lower_network, make_plan
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.pipeline import fuse_into_plugins
from trtllm_lite.builder.stages import split
from trtllm_lite.common.vocabulary import DECODER
from trtllm_lite.engine.plan import Plan
from trtllm_lite.engine.reader import EngineFile, read_engine
from trtllm_lite.network.module_kinds import module_kind
from trtllm_lite.quantize.network import Recipe, quantize_network
from trtllm_lite.quantize.schemes import FULL_PRECISION

CACHE_SCALE = 0.03125  # scale of keys and of values that are stored as bytes
LIMITS = {"max_batch_size": 3, "max_input_len": 16, "max_seq_len": 48, "tokens_per_block": 32}


def cuda_shape(**changes: Any) -> Shape:
    """A network whose extents the GPU kernels accept."""
    extents = {"heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64, "inter": 96, "vocab": 72, "max_seq": 48}
    return Shape(**{**extents, "dtype": ir.DataType.BFLOAT16, **changes})


CUDA_VARIANTS = {
    "wgmma": cuda_shape(head_dim=64),
    "llama": cuda_shape(),
    "float16": cuda_shape(dtype=ir.DataType.FLOAT16, tied=False),
    "mistral": cuda_shape(windows=(5, 5)),
    "mixed_heads": cuda_shape(layers=3, windows=(0,) * 3, layer_kv_heads=(2, 1, 4), layer_head_dims=(16, 64, 32)),
    "mixed_heads_and_windows": cuda_shape(
        layers=4, windows=(5, 0, 5, 0), layer_kv_heads=(2, 1), layer_head_dims=(16, 32, 64), qk_norm=True
    ),
    "softcap": cuda_shape(softcap=0.75, windows=(5, 0)),
    "sections": cuda_shape(heads=35, kv_heads=1, sinks=True, windows=(5, 0)),
    "softcap_wgmma": cuda_shape(softcap=0.75, head_dim=64),
    "sinks": cuda_shape(sinks=True, windows=(5, 0)),
    "qwen2": cuda_shape(qkv_bias=True, tied=False),
    "qwen3": cuda_shape(qk_norm=True, head_dim=32),
    "mlp_bias": cuda_shape(mlp_bias=True),
    "yarn": cuda_shape(attention_factor=1.25),
    "phi3": cuda_shape(head_dim=32, rotary_dim=20, tied=False),
    "gemma2": cuda_shape(
        mlp="gelu_tanh", post_norms=True, softcap=0.75, windows=(5, 0), embedding_scale=8.0, logit_softcap=1.5
    ),
    "gemma3": cuda_shape(
        mlp="gelu_tanh", post_norms=True, qk_norm=True, windows=(5, 0), embedding_scale=8.0, thetas=(100.0, 5000.0)
    ),
    "gpt2": cuda_shape(
        layer_norm=True,
        norm_bias=True,
        learned_positions=True,
        mlp="plain",
        linear_bias=True,
        qkv_bias=True,
        kv_heads=4,
        rotary_dim=0,
    ),
    "cohere": cuda_shape(layer_norm=True, parallel=True, logit_scale=0.25),
    "gpt_neox": cuda_shape(
        layer_norm=True,
        norm_bias=True,
        head_dim=32,
        rotary_dim=20,
        mlp="plain",
        qkv_bias=True,
        linear_bias=True,
        parallel=True,
        two_norms=True,
        tied=False,
    ),
    "glm4": cuda_shape(post_norms=True, qkv_bias=True, head_dim=32, rotary_dim=16, tied=False),
    "olmo2": cuda_shape(norms_all_heads=True, post_norms=True, pre_norms=False, tied=False),
    "exaone4": cuda_shape(pre_norms=False, post_norms=True, qk_norm=True, windows=(5, 0)),
    "stablelm": cuda_shape(head_layer_norms=True, layer_norm=True, head_dim=32, rotary_dim=16, tied=False),
    "act_order": cuda_shape(act_order=True),
    "plain": cuda_shape(
        layer_norm=True, norm_bias=True, learned_positions=True, mlp="plain", linear_bias=True, qkv_bias=True
    ),
}


def recipe(qformat: str, cache: str | None = None, plain_keys: bool = False) -> Recipe:
    """The quantization recipe of test networks, whose rows are short."""
    return Recipe(
        qformat,
        group_size=32,
        kv_cache_dtype=cache,
        kv_cache_scale=None if cache is None else CACHE_SCALE,
        key_cache_dtype="bfloat16" if plain_keys else "auto",
    )


def quantized(shape: Shape, qformat: str, cache: str | None = None, plain_keys: bool = False) -> ir.Model:
    """The quantized network, with made-up statistics if its scheme needs some."""
    model = network(shape)
    return quantize_network(model, recipe(qformat, cache, plain_keys), made_up(model))[0]


def lowered(
    shape: Shape | None = None,
    targets: str = "sm_90",
    tiled: bool = False,
    qformat: str = FULL_PRECISION,
    cache: str | None = None,
    plain_keys: bool = False,
    **limits: int,
) -> Lowered:
    """The programs of a network, without machine code; ``tiled``: a timing cache prefers tiled kernels.

    ``plain_keys``: only values are rounded to the type ``cache``.
    """
    dtype = {ir.DataType.BFLOAT16: "bfloat16", ir.DataType.FLOAT16: "float16"}[(shape or cuda_shape()).dtype]
    return lowered_model(quantized(shape or cuda_shape(), qformat, cache, plain_keys), dtype, targets, tiled, **limits)


def lowered_model(model: ir.Model, dtype: str, targets: str = "sm_90", tiled: bool = False, **limits: int) -> Lowered:
    """:func:`lowered` for any network whose activations are ``dtype``."""
    devices, bounds = parse_targets(targets.split(",")), BuildLimits(**{**LIMITS, **limits})
    fused = fuse_into_plugins(model, AUTO_DTYPE, bounds)
    bounds = replace(bounds, cache_groups=fused.cache_groups)
    timings = tiles_first(fused.graph, dtype, bounds, devices[0]) if tiled else None
    return lower_network(fused.graph, module_kind(model.graph).name, dtype, bounds, devices, timings)


def lowered_stages(shape: Shape, pp_size: int, targets: str = "sm_90") -> list[Lowered]:
    """The programs of each stage of a network in bfloat16."""
    bounds = BuildLimits(**LIMITS, pp_size=pp_size)
    fused = fuse_into_plugins(quantized(shape, FULL_PRECISION), AUTO_DTYPE, bounds)
    return [
        lower_network(
            stage.graph,
            DECODER,
            "bfloat16",
            replace(bounds, cache_groups=stage.cache_groups),
            parse_targets(targets.split(",")),
        )
        for stage in split(fused.graph, fused.cache_groups, pp_size)
    ]


def cuda_plan(shape: Shape | None = None, targets: str = "sm_90", tiled: bool = False, **limits: int) -> Plan:
    """A plan whose cubins are named by number, so that no compiler is needed."""
    programs = lowered(shape, targets, tiled, **limits)
    return make_plan(programs, {specialised: f"{number:064x}" for specialised, number in programs.kernels().items()})


def save_cuda_engine(path: Path, shape: Shape | None = None, targets: str = "sm_90", **limits: Any) -> EngineFile:
    """Build ``path / "engine"`` from ``path / "checkpoint"``, both new; returns the engine as read."""
    checkpoint = save_checkpoint(path / "checkpoint", shape or cuda_shape())
    build_engine(checkpoint, path / "engine", **{**LIMITS, **limits}, target=targets)
    return read_engine(path / "engine")
