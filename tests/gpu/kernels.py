"""Specialises and launches each kernel: macros, shared memory and grid for a problem's shape."""

from dataclasses import dataclass

import torch

from tests.gpu.device import GPU, Machine
from trtllm_lite.plugins.cuda.activation import ACTIVATION_FLAGS

WHOLE_SM_BYTES = 227 * 1024
IN_FLIGHT_BYTES = 72 * 1024


def dtype_flag(dtype: torch.dtype) -> int:
    return {torch.bfloat16: 0, torch.float16: 1}[dtype]


@dataclass(frozen=True)
class GemvConfig:
    """Options of a GEMV kernel; ``stage_k`` is the depth of a stage in elements."""

    stage_k: int = 1024
    tiles_per_stage: int = 1
    stream_x: bool = False
    shared_bytes: int = WHOLE_SM_BYTES
    in_flight_bytes: int = IN_FLIGHT_BYTES

    @property
    def threads(self) -> int:
        """Eight warps multiply; one more copies weights, two if rows have less than 1 KB, four if x streams, too."""
        return 384 if self.stream_x else 320 if self.stage_k * 2 < 1024 else 288


def gemv_config(in_features: int, tokens: int) -> GemvConfig:
    """Keep x in shared memory if that leaves 80 KB for the ring of weights; else x streams with the weights."""
    if tokens * (in_features * 2 + 16) <= WHOLE_SM_BYTES - 80 * 1024:
        return GemvConfig()
    return GemvConfig(stage_k=512, tiles_per_stage=2, stream_x=True, in_flight_bytes=WHOLE_SM_BYTES)


def _stream_defines(
    out: int, in_features: int, tokens: int, dtype: torch.dtype, config: GemvConfig
) -> dict[str, int | str]:
    return {
        "TL_WEIGHT_FORM": 0,
        "TL_ROW_SCALES": 0,
        "TL_IN": in_features,
        "TL_OUT": out,
        "TL_TOKENS": tokens,
        "TL_STAGE_K": config.stage_k,
        "TL_STAGE_ROWS": 16 * config.tiles_per_stage,
        "TL_CONSUMER_WARPS": 8,
        "TL_TEAMS": 1,
        "TL_STREAM_X": int(config.stream_x),
        "TL_SPLITS": 1,
        "TL_SHARED_BYTES": config.shared_bytes,
        "TL_IN_FLIGHT_BYTES": config.in_flight_bytes,
        "TL_FP16": dtype_flag(dtype),
    }


class Linear:
    """y = [rms_norm](x) @ weight.T [+ bias] [+ residual] for at most ``tokens`` rows."""

    def __init__(
        self,
        out: int,
        in_features: int,
        tokens: int,
        dtype: torch.dtype = torch.bfloat16,
        *,
        norm: bool = False,
        bias: bool = False,
        residual: bool = False,
        float_out: bool = False,
        config: GemvConfig | None = None,
        machine: Machine = GPU,
    ) -> None:
        config = config or gemv_config(in_features, tokens)
        defines = _stream_defines(out, in_features, tokens, dtype, config)
        flags = {"TL_NORM": norm, "TL_BIAS": bias, "TL_RESIDUAL": residual, "TL_FLOAT_OUT": float_out}
        flags |= {"TL_ACTIVATION": False, "TL_ROWS_ON": False}
        defines.update({name: int(value) for name, value in flags.items()})
        self.kernel = machine.kernel("linear/cuda.cuh", "linear", config.threads, config.shared_bytes, defines)
        tiles = -(-out // (16 * config.tiles_per_stage))
        self.grid = min(machine.num_sms, tiles)

    def __call__(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        norm_weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        epsilon: float = 1e-5,
        programmatic: bool = False,
    ) -> None:
        arguments = (y, x, weight, None, None, norm_weight, bias, residual, None, x.shape[0], epsilon, 0.0)
        self.kernel(*arguments, grid=self.grid, programmatic=programmatic)


class GatedLinear:
    """y = silu(g) * u with g, u = [rms_norm](x) @ weight[0].T, weight[1].T [+ bias[0], bias[1]]."""

    def __init__(
        self,
        out: int,
        in_features: int,
        tokens: int,
        dtype: torch.dtype = torch.bfloat16,
        *,
        norm: bool = False,
        bias: bool = False,
        config: GemvConfig | None = None,
        machine: Machine = GPU,
    ) -> None:
        config = config or gemv_config(in_features, tokens)
        flags = {"TL_NORM": int(norm), "TL_BIAS": int(bias), "TL_ACTIVATION": ACTIVATION_FLAGS["silu"], "TL_Y_TYPE": 0}
        flags["TL_ADDED"] = 0
        defines = _stream_defines(out, in_features, tokens, dtype, config) | flags
        source, shared_bytes = "gated_linear/cuda.cuh", config.shared_bytes
        self.kernel = machine.kernel(source, "gated_linear", config.threads, shared_bytes, defines)
        self.grid = min(machine.num_sms, -(-out // (8 * config.tiles_per_stage)))

    def __call__(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        norm_weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        epsilon: float = 1e-5,
        programmatic: bool = False,
    ) -> None:
        arguments = (y, x, weight, None, None, norm_weight, bias, None, x.shape[0], epsilon, 0.0, 0.0)
        self.kernel(*arguments, grid=self.grid, programmatic=programmatic)


@dataclass(frozen=True)
class ModelShape:
    """The extents that a decoder's kernels are specialised for."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    page: int = 32
    qkv_bias: bool = False

    @property
    def qkv_features(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def attention_features(self) -> int:
        return self.heads * self.head_dim


LLAMA_8B = ModelShape(4096, 14336, 32, 8, 128, 128256)
LLAMA_1B = ModelShape(2048, 8192, 32, 8, 64, 128256)


class QkvLinear:
    """Queries, keys and values of new tokens, rotated; keys and values go into the paged cache."""

    def __init__(
        self,
        shape: ModelShape,
        tokens: int,
        dtype: torch.dtype = torch.bfloat16,
        *,
        norm: bool = True,
        rotary_dim: int | None = None,
        cache_dtype: torch.dtype | None = None,
        plain_keys: bool = False,
        cache_scales: tuple[float, float] = (1.0, 1.0),
        config: GemvConfig | None = None,
        machine: Machine = GPU,
    ) -> None:
        """Options of the cache: ``cache_dtype`` is an 8-bit type, with ``cache_scales`` of keys and of values.

        ``plain_keys``: only values are of this type.
        """
        self.factors = [1 / scale for scale in cache_scales]
        config = config or gemv_config(shape.hidden, tokens)
        defines = _stream_defines(shape.qkv_features, shape.hidden, tokens, dtype, config)
        row_types = {None: 0, torch.float8_e4m3fn: 1, torch.int8: 2}
        stored = dtype if plain_keys else cache_dtype or dtype  # blocks of values may be followed by bytes of nobody
        defines |= {
            "TL_HEADS": shape.heads,
            "TL_KV_HEADS": shape.kv_heads,
            "TL_HEAD_DIM": shape.head_dim,
            "TL_ROTARY_DIM": shape.head_dim if rotary_dim is None else rotary_dim,
            "TL_PAGE": shape.page,
            "TL_BLOCK_BYTES": shape.kv_heads * shape.head_dim * shape.page * stored.itemsize,
            "TL_NORM": int(norm),
            "TL_BIAS": int(shape.qkv_bias),
            "TL_CACHE_TYPE": row_types[cache_dtype],
            "TL_KEY_TYPE": row_types[None if plain_keys else cache_dtype],
        }
        shared_bytes = config.shared_bytes
        self.kernel = machine.kernel("paged_attention/qkv.cuh", "qkv_linear", config.threads, shared_bytes, defines)
        self.grid = min(machine.num_sms, -(-shape.qkv_features // (16 * config.tiles_per_stage)))

    def __call__(
        self,
        q: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        cos: torch.Tensor,
        sin: torch.Tensor,
        slots: torch.Tensor,
        norm_weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        epsilon: float = 1e-5,
        programmatic: bool = False,
    ) -> None:
        operands = (x, weight, None, None, norm_weight, bias, cos, sin, slots)
        arguments = (q, key_cache, value_cache, *operands, x.shape[0], epsilon, 0.0, *self.factors)
        self.kernel(*arguments, grid=self.grid, programmatic=programmatic)
