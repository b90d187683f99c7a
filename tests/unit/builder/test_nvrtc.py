"""Kernels compile on a machine without a GPU, and again only when something that they depend on changes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="the cuda extra is not installed")

from tests.rounds import rounds
from trtllm_lite.builder import nvrtc
from trtllm_lite.builder.nvrtc import Cubin, compile_kernel
from trtllm_lite.common.vocabulary import KV_CACHE_DTYPES
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.cuda.few_rows import FewRows, GemvConfig, few_rows_config
from trtllm_lite.plugins.cuda.grouped import ExpertChoice
from trtllm_lite.plugins.cuda.replay import STATE_FORMS, chunk_bytes, prefetched_bytes
from trtllm_lite.plugins.cuda.row_scales import RowScales
from trtllm_lite.plugins.cuda.split_k import SplitKConfig
from trtllm_lite.plugins.cuda.weight_form import BlockNumbers, WeightForm, weight_form
from trtllm_lite.plugins.launch import Buffer, Device, WeightBuffers
from trtllm_lite.plugins.paged_attention.launches import Heads, Scores
from trtllm_lite.plugins.paged_attention.prefill import wgmma_extents, widening
from trtllm_lite.plugins.replay import ReplayState
from trtllm_lite.plugins.rowwise.cuda import expression as rowwise_expression

ARCHS = (["sm_80", "sm_89"], ["sm_90a", "sm_100a", "sm_120a"])  # sources have one form for each of these groups
LINEAR = {
    "TL_IN": 4096,
    "TL_OUT": 4096,
    "TL_TOKENS": 1,
    "TL_STAGE_K": 512,
    "TL_STAGE_ROWS": 16,
    "TL_CONSUMER_WARPS": 8,
    "TL_TEAMS": 1,
    "TL_WEIGHT_FORM": 0,
    "TL_ROW_SCALES": 0,
    "TL_STREAM_X": 0,
    "TL_SPLITS": 1,
    "TL_SHARED_BYTES": 96 * 1024,
    "TL_IN_FLIGHT_BYTES": 64 * 1024,
    "TL_NORM": 1,
    "TL_BIAS": 0,
    "TL_RESIDUAL": 1,
    "TL_FLOAT_OUT": 0,
    "TL_ACTIVATION": 0,
}
TILED = {
    "TL_IN": 4096,
    "TL_OUT": 14336,
    "TL_TILE_ROWS": 128,
    "TL_TILE_COLUMNS": 224,
    "TL_ROW_BLOCKS": 2,
    "TL_COLUMN_BLOCKS": 1,
    "TL_SPLITS": 1,
    "TL_X_BOX": 128,
    "TL_X_BOXES": 1,
    "TL_SHARED_BYTES": 227 * 1024,
    "TL_RAW_STAGES": 0,
    "TL_WEIGHT_FORM": 2,
    "TL_ROW_SCALES": 1,
}
GROUPS = TILED | {"TL_ROW_BLOCKS": 1, "TL_TILE_COLUMNS": 128, "TL_WEIGHT_FORM": 0, "TL_ROW_SCALES": 0}
BLOCKS = {"TL_BLOCK": 128, "TL_NUMBER_TYPE": 1, "TL_OFFSETS": 1}
SWAP_AB = GROUPS | BLOCKS | {"TL_WEIGHT_FORM": 8, "TL_X_BOX": 16, "TL_RAW_STAGES": 2, "TL_SHARED_BYTES": 227 * 1024}
SCORES = {"TL_SOFTCAP": 1, "TL_SINKS": 1, "TL_FIRST_POSITION": 1, "TL_CHUNKED": 1, "TL_TEMPERATURE": 1}
GELU = {"TL_ACTIVATION": 2}
EXPERTS = {"TL_EXPERTS": 128, "TL_TOP_K": 8}
CHOICE = EXPERTS | {
    **{"TL_LOCAL_EXPERTS": 64, "TL_MOE_TP": 2, "TL_SCORE_BIAS": 1, "TL_CORRECTION": 1, "TL_SCORING": 0},
    **{"TL_FACTORS": 1, "TL_SCORES": 256, "TL_SHARED": 0, "TL_SHARED_GATE": 0},
    **{"TL_GROUPS": 8, "TL_TOP_GROUPS": 4, "TL_NUM_BEST": 2},
}
LISTED = CHOICE | {"TL_LIST_BYTES": ExpertChoice(128, 8, 64).list_bytes(1), "TL_GRAIN": 4}
ADAPTERS = {"TL_PARTS": 3, "TL_MAX_RANK": 16, "TL_SPLITS": 8, "TL_UNITS": 24, "TL_THREADS": 256}
NORM = {"TL_HIDDEN": 8192, "TL_THREADS": 512, "TL_Y_TYPE": 0, "TL_ROW_SCALES": 0}
OWNED = {"TL_OWNED": 1, "TL_STORED": 1, "TL_RANK_ROWS": 512, "TL_SUM_EVERYWHERE": 0}
HERE, OWNERS = {"TL_ROWS_ON": 0}, {"TL_ROWS_ON": 1, "TL_RANKS": 8, "TL_RANK_ROWS": 512}
STATES: dict[str, int | str] = {"TL_BLOCK_BYTES": 65536}
SPACE: dict[str, int | str] = {"TL_HEADS": 128, "TL_GROUPS": 1, "TL_DT_PITCH": 16768, "TL_DECAY_DIM": 1}
RULE: dict[str, int | str] = {"TL_KEY_HEADS": 16, "TL_VALUE_HEADS": 32, "TL_DECAY_DIM": 1}
RULE |= {"TL_A_PITCH": 12352, "TL_B_PITCH": 12352}
REPLAY: dict[str, int | str] = {"TL_KEY_DIM": 128, "TL_VALUE_DIM": 128, "TL_REPLAYED": 16, "TL_TAKEN_BACK": 5}
REPLAY |= {"TL_STATE_FORM": 0, "TL_MOST_TOKENS": 16}
WORDS = {  # of a head's state, by the elements of keys, of values, and decays
    sizes: ReplayState(*sizes, 16, 5).size for sizes in ((128, 128, 1), (256, 256, 1), (128, 128, 128))
}
REPLAY |= {"TL_COLUMNS": 128, "TL_STATE_WORDS": WORDS[128, 128, 1]}
TOKENS: dict[str, int | str] = {"TL_PREFETCHES": 0, "TL_THREADS": 512, "TL_BLOCKS_AT_ONCE": 1}
CHUNKS = {"TL_CHUNK_SLOTS": 4, "TL_COLUMNS": 32, "TL_SHARED_BYTES": chunk_bytes(128, 32, 4, 4)}
WIDE_CHUNKS = {"TL_CHUNK_SLOTS": 4, "TL_COLUMNS": 64, "TL_SHARED_BYTES": chunk_bytes(128, 64, 8, 4)}
HEADS = {"TL_HEADS": 32, "TL_KV_HEADS": 8, "TL_HEAD_DIM": 128, "TL_PAGE": 32, "TL_BLOCK_BYTES": 32 * 131_072}
LATENTS = {"TL_HEADS": 128, "TL_LATENT_DIM": 512, "TL_ROTARY_DIM": 64, "TL_PAGE": 32, "TL_BLOCK_BYTES": 61 * 36_864}
KERNELS: dict[str, dict[str, int | str]] = {
    "all_gather/cuda.cuh": {"TL_BARRIER_BLOCKS": 128},
    "all_gather/side_by_side.cuh": {},
    "all_reduce/pull.cuh": NORM | {"TL_NORM": 1, "TL_BARRIER_BLOCKS": 128, "TL_RANKS": 8} | OWNED,
    "all_reduce/push.cuh": NORM | {"TL_NORM": 1, "TL_INBOX_ROWS": 512},
    "cache_slots/cuda.cuh": {"TL_PAGE": 32, "TL_GROUPS": 3},
    "causal_conv/cuda.cuh": {
        **{"TL_CHANNELS": 8192, "TL_OF_THREAD": 4, "TL_X_PITCH": 12352, "TL_WIDTH": 4, "TL_SLOTS": 8},
        **{"TL_TOKENS": 32, "TL_THREADS": 128, "TL_ACTIVATION": 1, **STATES},
    },
    "channel_magnitudes/cuda.cuh": {"TL_FEATURES": 4096},
    "embedding/cuda.cuh": {"TL_HIDDEN": 4096},
    "gated_delta_rule/chunks.cuh": {**RULE, **REPLAY, **CHUNKS, **STATES},
    "gated_delta_rule/cuda.cuh": {**RULE, **REPLAY, **STATES, **TOKENS},
    "gated_rms_norm/cuda.cuh": {
        **{"TL_FEATURES": 4096, "TL_GATE_PITCH": 12352, "TL_GROUP": 128, "TL_THREADS": 256, "TL_SIGMOID": 0},
        **{"TL_VECTOR": 8, "TL_LANES": 16},
    },
    "gated_linear/cuda.cuh": LINEAR | GELU | {"TL_Y_TYPE": 0, "TL_ADDED": 1},
    "gated_linear/gate_mul.cuh": GELU | {"TL_OUT": 14336, "TL_THREADS": 256},
    "gated_linear/swap_ab.cuh": SWAP_AB | GELU | {"TL_ADDED": 1},
    "gated_linear/tiled.cuh": TILED | GELU | {"TL_Y_TYPE": 1, "TL_ADDED": 1},
    "gather_columns/cuda.cuh": {"TL_FEATURES": 32008, "TL_COLUMNS": 128256, "TL_ITEM_BYTES": 4, "TL_THREADS": 256},
    "gather_rows/cuda.cuh": {"TL_HIDDEN": 4096},
    "merge_rows/cuda.cuh": {"TL_VECTORS": 576, "TL_THREADS": 256},
    "latent_attention/absorb.cuh": LATENTS
    | {
        **{"TL_IN": 128, "TL_OUT": 512, "TL_X_STRIDE": 24576, "TL_X_HEAD": 128, "TL_Y_STRIDE": 73728, "TL_Y_HEAD": 576},
        **{"TL_ROWS": 16, "TL_COLUMNS": 128, "TL_INPUTS_FIRST": 1, "TL_SHARED_BYTES": 39168},
    },
    "latent_attention/attend.cuh": LATENTS | {"TL_MAX_ITEMS": 192, "TL_NEW_TOKENS": 5, "TL_SHARED_BYTES": 227 * 1024},
    "latent_attention/values.cuh": {
        **{"TL_HEADS": 128, "TL_IN": 512, "TL_OUT": 128, "TL_X_STRIDE": 65536, "TL_X_HEAD": 512, "TL_Y_STRIDE": 16384},
        **{"TL_Y_HEAD": 128, "TL_ROWS": 64, "TL_COLUMNS": 32, "TL_INPUTS_FIRST": 0, "TL_SHARED_BYTES": 99840},
    },
    "layer_norm/cuda.cuh": {"TL_HIDDEN": 4096, "TL_THREADS": 256, "TL_RESIDUAL": 1, "TL_BIAS": 1},
    "linear/cuda.cuh": LINEAR | {"TL_WEIGHT_FORM": 4} | BLOCKS | HERE,
    "linear/dequantize.cuh": {"TL_IN": 4096, "TL_THREADS": 256, "TL_WEIGHT_FORM": 3} | BLOCKS,
    "linear/tiled.cuh": LINEAR
    | TILED
    | {"TL_WEIGHT_FORM": 4, "TL_RAW_STAGES": 2, "TL_TILE_COLUMNS": 192}
    | BLOCKS
    | OWNERS,
    "linear/swap_ab.cuh": LINEAR | SWAP_AB | {"TL_WEIGHT_FORM": 4, "TL_SPLITS": 2} | OWNERS,
    "low_rank/expand.cuh": ADAPTERS | {"TL_OUT_0": 4096, "TL_OUT_1": 1024, "TL_OUT_2": 1024, "TL_RESIDUAL": 0},
    "low_rank/shrink.cuh": ADAPTERS | {"TL_IN": 4096},
    "mamba2/chunks.cuh": {**SPACE, **REPLAY, **WIDE_CHUNKS, **STATES},
    "mamba2/cuda.cuh": {**SPACE, **REPLAY, **STATES, **TOKENS},
    "paged_attention/decode.cuh": HEADS
    | SCORES
    | {"TL_WARPS": 4, "TL_MAX_ITEMS": 256, "TL_MAX_GRID": 192, "TL_NEW_TOKENS": 5, "TL_ITEM_TOKENS": 3},
    "paged_attention/prefill.cuh": HEADS | SCORES | {"TL_SHARED_BYTES": 69632},
    "paged_attention/prefill_wgmma.cuh": HEADS
    | SCORES
    | {"TL_SHARED_BYTES": 229664, "TL_WIDE_TOKENS": 1024, "TL_NEW_TOKENS": 0},
    "paged_attention/qkv.cuh": LINEAR | HEADS | {"TL_ROTARY_DIM": 96},
    "paged_attention/qkv_swap_ab.cuh": SWAP_AB | HEADS | {"TL_OUT": 6144, "TL_ROTARY_DIM": 64, "TL_BIAS": 1},
    "paged_attention/qkv_tiled.cuh": TILED
    | HEADS
    | {"TL_OUT": 6144, "TL_ROTARY_DIM": 64, "TL_BIAS": 1, "TL_CACHE_TYPE": 1},
    "paged_attention/rope_cache.cuh": HEADS
    | {"TL_WARPS": 8, "TL_NORM": 1, "TL_ROTARY_DIM": 100, "TL_STORED": 1, "TL_VALUE_NORM": 1, "TL_APPENDS": 1},
    "paged_attention/widen.cuh": HEADS | {"TL_CACHE_TYPE": 1, "TL_FP16": 1, "TL_WIDE_TOKENS": 1024},
    "paged_load/cuda.cuh": {"TL_HIDDEN": 4096, "TL_PAGE": 32},
    "paged_store/cuda.cuh": {"TL_HIDDEN": 4096},
    "pooling/cuda.cuh": {"TL_HIDDEN": 384, "TL_THREADS": 256, "TL_MEAN": 1, "TL_L2": 1, "TL_FLOAT_OUT": 0},
    "ragged_attention/cuda.cuh": {
        **{"TL_HEADS": 12, "TL_HEAD_DIM": 64, "TL_TILES": 2, "TL_STEP": 64, "TL_QUERY_STRIDE": 2304},
        **{"TL_WINDOW": 64, "TL_DISTANCES": 257, "TL_SHARED_BYTES": (128 + 4 * 64) * 144 + 257 * 4},
    },
    "ragged_attention/rotate.cuh": {"TL_HEADS": 12, "TL_HEAD_DIM": 64, "TL_HALF_DIM": 16, "TL_THREADS": 128},
    "head_layer_norm/cuda.cuh": {"TL_NORMED_HEADS": 40, "TL_FEATURES": 7680, "TL_HEAD_DIM": 160, "TL_THREADS": 512},
    "mix_streams/cuda.cuh": {
        **{"TL_HIDDEN": 2048, "TL_INPUTS": 5, "TL_THREADS": 256, "TL_RESIDUAL": 1, "TL_SCALED": 1},
    },
    "rescale_rows/cuda.cuh": {"TL_FEATURES": 2048, "TL_THREADS": 256},
    "cut_rows/cuda.cuh": {"TL_FEATURES": 16384, "TL_THREADS": 512},
    "query_key_norm/cuda.cuh": {"TL_QUERIES": 4096, "TL_KEYS": 4096, "TL_FEATURES": 12288, "TL_THREADS": 512},
    "position_embedding/cuda.cuh": {"TL_HIDDEN": 4096},
    "grouped_gated_linear/cuda.cuh": LINEAR | LISTED | GELU | {"TL_SELF_GATED": 1, "TL_SCALES_INPUTS": 1},
    "grouped_gated_linear/sort_rows.cuh": EXPERTS | {"TL_IN": 2048, "TL_THREADS": 128, "TL_SHARES": 1},
    "grouped_gated_linear/tiled.cuh": GROUPS | EXPERTS | {"TL_BIAS": 1, "TL_ACTIVATION": 5, "TL_SELF_GATED": 1},
    "grouped_gated_linear/swap_ab.cuh": SWAP_AB | EXPERTS | {"TL_BIAS": 1, "TL_ACTIVATION": 4, "TL_SELF_GATED": 0},
    "grouped_linear/combine.cuh": EXPERTS | {"TL_OUT": 2048, "TL_THREADS": 128, "TL_RESIDUAL": 1, "TL_SHARES": 1},
    "grouped_linear/combine_norm.cuh": EXPERTS
    | NORM
    | {"TL_HIDDEN": 2048, "TL_THREADS": 256, "TL_RESIDUAL": 1, "TL_SHARES": 1},
    "grouped_linear/cuda.cuh": LINEAR | LISTED | {"TL_STREAM_X": 1},
    "grouped_linear/even_groups.cuh": EXPERTS
    | {"TL_LOCAL_EXPERTS": 64, "TL_SHARED": 0, "TL_GROUP_ROWS": 32, "TL_THREADS": 128},
    "grouped_linear/tiled.cuh": GROUPS | EXPERTS | {"TL_BIAS": 0},
    "grouped_linear/swap_ab.cuh": SWAP_AB | EXPERTS | {"TL_BIAS": 0},
    "grouped_rms_norm/cuda.cuh": {
        **{"TL_FEATURES": 8192, "TL_GROUPS": 1, "TL_GATE_FIRST": 1, "TL_GATE_PITCH": 16768, "TL_THREADS": 512},
    },
    "router/choose_rows.cuh": CHOICE | {"TL_THREADS": 256},
    "router/sort.cuh": CHOICE | {"TL_THREADS": 256, "TL_GROUP_ROWS": 16},
    "router/sort_chosen.cuh": CHOICE | {"TL_THREADS": 512, "TL_GROUP_ROWS": 128},
    "sigmoid_gate/cuda.cuh": {"TL_IN": 2048, "TL_OUT": 2048, "TL_THREADS": 256},
    "quantize_rows/cuda.cuh": {"TL_FEATURES": 4096, "TL_THREADS": 512, "TL_ROW_SCALES": 1, "TL_Y_TYPE": 2},
    "rms_norm/cuda.cuh": NORM | {"TL_RESIDUAL": 1},
    "rotary_table/cuda.cuh": {"TL_HALF_DIM": 64},
    "rowwise/cuda.cuh": {
        "TL_EXPRESSION": rowwise_expression("x0 x1 add gelu x2 gelu_tanh sub neg v0 mul c1 div tanh exp sqrt relu"),
        "TL_FEATURES": 4096,
        "TL_AT_ONCE": 8,
        "TL_X1_PITCH": 4096,
        "TL_THREADS": 256,
        "TL_ROWS": 3,
        "TL_VECTORS": 1,
        "TL_FLOAT_ROWS": 2,
        "TL_BYTE_ROWS": 4,
        "TL_FLOAT_OUT": 0,
    },
    "sample/cuda.cuh": {"TL_VOCAB": 128256, "TL_SHARED_BYTES": 65536, "TL_CLUSTER": 8},
}
ONLY_FOR = {
    "gated_linear/tiled.cuh": "sm_90a",
    "grouped_gated_linear/tiled.cuh": "sm_90a",
    "grouped_gated_linear/swap_ab.cuh": "sm_90a",
    "grouped_linear/tiled.cuh": "sm_90a",
    "grouped_linear/swap_ab.cuh": "sm_90a",
    "latent_attention/attend.cuh": "sm_90a",
    "gated_linear/swap_ab.cuh": "sm_90a",
    "linear/swap_ab.cuh": "sm_90a",
    "linear/tiled.cuh": "sm_90a",
    "paged_attention/prefill_wgmma.cuh": "sm_90a",
    "paged_attention/qkv_swap_ab.cuh": "sm_90a",
    "paged_attention/qkv_tiled.cuh": "sm_90a",
    "paged_attention/widen.cuh": "sm_90a",
    "quantize_rows/cuda.cuh": "sm_90a",
    "router/sort.cuh": "sm_90a",
    "router/sort_chosen.cuh": "sm_90a",
}
SOURCE = '#include "lib/outer.cuh"\nextern "C" __global__ void f(float* x) { x[threadIdx.x] = outer(TL_N); }\n'
OUTER = '#pragma once\n  #  include "lib/inner.cuh"\n__device__ float outer(int n) { return 2.0f * inner(n); }\n'
INNER = "#pragma once\n__device__ float inner(int n) { return n + 1.0f; }\n"


class Project:
    """A kernel that includes a header that includes another, and a kernel cache; counts compilations."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.cache, self.compiled = root / "src", root / "cache", 0
        (self.root / "lib").mkdir(parents=True)
        self.write("kernel.cuh", SOURCE)
        self.write("lib/outer.cuh", OUTER)
        self.write("lib/inner.cuh", INNER)
        real = nvrtc._compile

        def counting(compiler: object, source: Path, *arguments: Any) -> bytes:
            self.compiled += source.is_relative_to(root)  # other threads may compile meanwhile
            return real(compiler, source, *arguments)

        monkeypatch.setattr(nvrtc, "_compile", counting)

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def compile(self, arch: str = "sm_90a", **defines: int) -> Cubin:
        source = self.root / "kernel.cuh"
        return compile_kernel(source, {"TL_N": 3} | defines, arch, include_root=self.root, cache_dir=self.cache)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


def _targets() -> Iterator[tuple[str, str]]:
    """Each kernel with one target of each group, chosen in turn; with all of them if ``--all-combinations``."""
    for number, source in enumerate(KERNELS):
        for archs in [[ONLY_FOR[source]]] if source in ONLY_FOR else ARCHS:
            yield from ((source, archs[(number + turn) % len(archs)]) for turn in range(rounds(len(archs))))


@pytest.mark.parametrize(("source", "arch"), list(_targets()))
def test_every_kernel_compiles_for_its_targets(source: str, arch: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[3] / "plugins"
    cubin = compile_kernel(root / source, KERNELS[source], arch, include_root=root, cache_dir=tmp_path)
    assert cubin.image.startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (
            "gated_delta_rule/cuda.cuh",
            {"TL_KEY_HEADS": 32, "TL_DECAY_DIM": 128, "TL_STATE_WORDS": WORDS[128, 128, 128]},
        ),
        (
            "gated_delta_rule/cuda.cuh",
            {
                **{"TL_KEY_DIM": 256, "TL_VALUE_DIM": 256, "TL_STATE_WORDS": WORDS[256, 256, 1]},
                **{"TL_COLUMNS": 32, "TL_THREADS": 128},
            },
        ),
        ("gated_delta_rule/cuda.cuh", {"TL_STATE_FORM": 1, "TL_COLUMNS": 32, "TL_THREADS": 128}),
        ("mamba2/cuda.cuh", {"TL_STATE_FORM": 2}),
        ("gated_rms_norm/cuda.cuh", {"TL_SIGMOID": 1, "TL_VECTOR": 2, "TL_LANES": 32}),
    ],
)
def test_other_forms_of_recurrent_layers_compile(source: str, form: dict[str, int], tmp_path: Path) -> None:
    root = Path(__file__).parents[3] / "plugins"
    cubin = compile_kernel(root / source, KERNELS[source] | form, "sm_90a", include_root=root, cache_dir=tmp_path)
    assert cubin.image.startswith(b"\x7fELF")


@pytest.mark.parametrize(("source", "sizes"), [("gated_delta_rule", (128, 128, 1)), ("mamba2", (128, 64, 1))])
@pytest.mark.parametrize("form", [0, 1])
def test_kernels_that_copy_states_ahead_compile(
    source: str, sizes: tuple[int, int, int], form: int, tmp_path: Path
) -> None:
    root, name = Path(__file__).parents[3] / "plugins", f"{source}/cuda.cuh"
    layout = ReplayState(*sizes, 16, 5, STATE_FORMS[form])
    shared_bytes = prefetched_bytes(layout)
    defines = {"TL_VALUE_DIM": sizes[1], "TL_COLUMNS": sizes[1], "TL_STATE_FORM": form, "TL_SHARED_BYTES": shared_bytes}
    defines |= {"TL_STATE_WORDS": layout.size // (1 if form == 0 else 2), "TL_PREFETCHES": 1}
    defines["TL_THREADS"] = 4 * sizes[1] + 128
    cubin = compile_kernel(root / name, KERNELS[name] | defines, "sm_90a", include_root=root, cache_dir=tmp_path)
    assert cubin.image.startswith(b"\x7fELF")


@pytest.mark.parametrize(
    "name",
    [
        *("grouped_gated_linear/cuda.cuh", "grouped_linear/cuda.cuh"),
        *("router/choose_rows.cuh", "router/sort.cuh", "router/sort_chosen.cuh"),
    ],
)
@pytest.mark.parametrize(("shared", "gate", "rows"), [(1, 1, 1), (2, 0, 5), (4, 1, 16)])
def test_choices_with_shared_experts_compile(name: str, shared: int, gate: int, rows: int, tmp_path: Path) -> None:
    """There are 256 experts, of which a row chooses eight, and the shared ones, all on one rank.

    Lists of what up to 16 rows choose are as large as the builder says.
    """
    root, experts = Path(__file__).parents[3] / "plugins", 256 + shared
    of_all = {"TL_EXPERTS": experts, "TL_LOCAL_EXPERTS": experts, "TL_TOP_K": 8 + shared, "TL_SCORES": 2 * 256 + 8}
    defines = KERNELS[name] | of_all | {"TL_SHARED": shared, "TL_SHARED_GATE": gate}
    if name.startswith("grouped"):
        listed = ExpertChoice(experts, 8 + shared, experts, shared=shared).list_bytes(rows)
        defines |= {"TL_TOKENS": rows, "TL_LIST_BYTES": listed, "TL_IN": 2048, "TL_SHARED_BYTES": 216 * 1024}
    cubin = compile_kernel(root / name, defines, "sm_90a", include_root=root, cache_dir=tmp_path)
    assert cubin.image.startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("paged_attention/decode.cuh", {"TL_NEW_TOKENS": 1, "TL_ITEM_TOKENS": 1}),
        ("paged_attention/decode.cuh", {"TL_NEW_TOKENS": 5, "TL_ITEM_TOKENS": 2}),
        *(("paged_attention/prefill.cuh", {}), ("paged_attention/prefill_wgmma.cuh", {})),
    ],
)
def test_attention_of_many_heads_that_share_a_key_compiles(name: str, more: dict[str, int], tmp_path: Path) -> None:
    """The query heads of Falcon 7B."""
    root = Path(__file__).parents[3] / "plugins"
    defines = KERNELS[name] | {"TL_HEADS": 71, "TL_KV_HEADS": 1, "TL_HEAD_DIM": 64} | more
    cubin = compile_kernel(root / name, defines, "sm_90a", include_root=root, cache_dir=tmp_path)
    assert cubin.image.startswith(b"\x7fELF")


@pytest.mark.parametrize("name", ["grouped_gated_linear/cuda.cuh", "grouped_linear/cuda.cuh", "router/choose_rows.cuh"])
def test_choices_of_sparse_mixer_compile(name: str, tmp_path: Path) -> None:
    root, of_mixer = Path(__file__).parents[3] / "plugins", {"TL_SCORING": 6, "TL_GROUPS": 1, "TL_TOP_GROUPS": 1}
    cubin = compile_kernel(root / name, KERNELS[name] | of_mixer, "sm_90a", include_root=root, cache_dir=tmp_path)
    assert cubin.image.startswith(b"\x7fELF")


@pytest.mark.parametrize(("key_type", "cache_type"), [(0, 0), (1, 1), (0, 2)])
def test_attention_of_decode_rows_in_the_order_of_prompts_compiles(
    key_type: int, cache_type: int, tmp_path: Path
) -> None:
    root, source = Path(__file__).parents[3] / "plugins", "paged_attention/prefill_wgmma.cuh"
    one_token = {"TL_NEW_TOKENS": 1, "TL_KEY_TYPE": key_type, "TL_CACHE_TYPE": cache_type, "TL_FP16": 1}
    cubin = compile_kernel(root / source, KERNELS[source] | one_token, "sm_90a", include_root=root, cache_dir=tmp_path)
    assert cubin.image.startswith(b"\x7fELF")


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("cache_dtype", KV_CACHE_DTYPES.values())
def test_attention_over_values_of_bytes_beside_plain_keys_compiles(
    cache_dtype: str, dtype: str, tmp_path: Path
) -> None:
    """Every kernel of a layer whose keys have 16 bits has as much shared memory as the builder says."""
    root, device = Path(__file__).parents[3] / "plugins", Device("sm_90a", 227 * 1024)
    heads = Heads(32, 8, 128, 32, dtype, cache_dtype, 32 * 98_304, 128, key_dtype=dtype)
    scores, (shared_bytes, _) = Scores(0.1, 0, 0.0), wgmma_extents(heads, "prefill")
    sizes = {"TL_SHARED_BYTES": shared_bytes, "TL_WIDE_TOKENS": 1024, "TL_NEW_TOKENS": 0}
    attends, stores = heads.defines() | scores.defines(), heads.rope_defines()
    kernels = {
        "decode.cuh": attends
        | {"TL_WARPS": 4, "TL_MAX_ITEMS": 256, "TL_MAX_GRID": 192, "TL_NEW_TOKENS": 5, "TL_ITEM_TOKENS": 3},
        "prefill_wgmma.cuh": attends | sizes,
        "rope_cache.cuh": stores | {"TL_WARPS": 8, "TL_NORM": 1, "TL_STORED": 1, "TL_VALUE_NORM": 0, "TL_APPENDS": 1},
        "widen.cuh": dict(widening(heads, scores).defines),
        **{name: KERNELS[f"paged_attention/{name}"] | stores for name in ("qkv.cuh", "qkv_tiled.cuh")},
    }
    for name, defines in kernels.items():
        source = root / "paged_attention" / name
        cubin = compile_kernel(source, defines, device.arch, include_root=root, cache_dir=tmp_path)
        assert cubin.image.startswith(b"\x7fELF")


@pytest.mark.each_value
@pytest.mark.parametrize("source", ["gated_linear/cuda.cuh", "linear/cuda.cuh", "paged_attention/qkv.cuh"])
@pytest.mark.parametrize(
    "form",
    [
        weight_form("float16"),
        weight_form("int8"),
        weight_form("float8_e4m3fn", "float8_e4m3fn"),
        weight_form("int8", "int8"),
        weight_form("int4", blocks=BlockNumbers(128, "float16", offsets=True)),
    ],
)
def test_products_whose_depth_is_split_compile(source: str, form: WeightForm, tmp_path: Path) -> None:
    """The kernels leave as many bytes for the ring as the builder assumes."""
    root, device = Path(__file__).parents[3] / "plugins", Device("sm_90a", 227 * 1024)
    config = few_rows_config((4096, 4096), form, 16, device)
    assert isinstance(config, SplitKConfig)
    scales = RowScales("int8", 1e-30, per_row=True) if form.x_bytes == 1 else None
    weight = WeightBuffers(Buffer("weight", "int8", (4096, 4096)))
    split = FewRows(16, "float16", device, config, scales).kernel(source, "", weight, {})
    defines = {name: value for name, value in KERNELS[source].items() if name not in BLOCKS} | dict(split.defines)
    cubin = compile_kernel(root / source, defines, "sm_90a", include_root=root, cache_dir=tmp_path)
    assert cubin.image.startswith(b"\x7fELF")


@pytest.mark.each_value
@pytest.mark.parametrize("product", ["gated_linear/", "linear/", "paged_attention/qkv"])
@pytest.mark.parametrize(
    ("kernel", "more"),
    [
        ("cuda.cuh", {"TL_WEIGHT_FORM": 5, "TL_ROW_SCALES": 1}),
        ("tiled.cuh", {"TL_WEIGHT_FORM": 5}),
        ("tiled.cuh", {"TL_WEIGHT_FORM": 3, "TL_PAIRS32": 1, "TL_RAW_STAGES": 2, "TL_TILE_COLUMNS": 128} | BLOCKS),
        ("swap_ab.cuh", {"TL_WEIGHT_FORM": 4, "TL_PAIRS32": 1}),
        ("swap_ab.cuh", {"TL_X_BOX": 8, "TL_X_ROWS": 2}),
    ],
)
def test_ordered_products_compile(product: str, kernel: str, more: dict[str, int], tmp_path: Path) -> None:
    root = Path(__file__).parents[3] / "plugins"
    source = product + kernel if product.endswith("/") else f"{product}_{kernel}".replace("_cuda", "")
    listed = {name: value for name, value in KERNELS[source].items() if name not in BLOCKS or "swap" in kernel}
    raw = {} if more.get("TL_RAW_STAGES") or "swap" in kernel else {"TL_RAW_STAGES": 0}
    defines = listed | {"TL_ORDERED": 1} | raw | more
    cubin = compile_kernel(root / source, defines, "sm_90a", include_root=root, cache_dir=tmp_path)
    assert cubin.image.startswith(b"\x7fELF")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float4_e2m1fn", "int8"])
@pytest.mark.parametrize(("in_features", "shared_bytes"), [(4096, 99 * 1024), (1024, 227 * 1024)])
def test_products_of_blocks_compile(dtype: str, arch: str, in_features: int, shared_bytes: int, tmp_path: Path) -> None:
    """Some targets are older than sm_89 and do not convert FP8; short rows are computed by several teams."""
    root, device = Path(__file__).parents[3] / "plugins", Device(arch, shared_bytes)
    form = weight_form(dtype, blocks=BlockNumbers(32, "bfloat16", offsets=False))
    config = few_rows_config((4096, in_features), form, 4, device)
    assert isinstance(config, GemvConfig)
    assert (config.teams > 1) == (shared_bytes > 99 * 1024)
    weight = WeightBuffers(Buffer("weight", dtype, (4096, in_features)))
    source = "linear/cuda.cuh"
    gemv = FewRows(4, "bfloat16", device, config).kernel(source, "", weight, {})
    defines = {name: value for name, value in KERNELS[source].items() if name not in BLOCKS} | dict(gemv.defines)
    cubin = compile_kernel(root / source, defines, arch, include_root=root, cache_dir=tmp_path)
    assert cubin.image.startswith(b"\x7fELF")


def test_sources_tell_no_more_targets_apart() -> None:
    """A kernel that compiles for one target of a group compiles for all of them, except for PTX that ptxas refuses."""
    texts = [path.read_text() for path in (Path(__file__).parents[3] / "plugins").rglob("*.cuh")]
    tests = {test for text in texts for test in re.findall(r"__CUDA_ARCH__.*", text)}
    assert {test.rstrip(")") for test in tests} == {"__CUDA_ARCH__ >= 900"}


def test_every_kernel_is_listed() -> None:
    root = Path(__file__).parents[3] / "plugins"
    found = {path.relative_to(root).as_posix() for path in root.glob("*/*.cuh") if "__global__" in path.read_text()}
    assert found == KERNELS.keys()


def test_same_input_comes_from_the_cache_and_is_the_same(project: Project) -> None:
    first, second = project.compile(), project.compile()
    assert first == second
    assert project.compiled == 1
    assert [entry.name for entry in project.cache.iterdir()] == [f"{first.key}.cubin"]
    (project.cache / f"{first.key}.cubin").unlink()
    assert project.compile() == first  # equal byte for byte after a new compilation


@pytest.mark.parametrize(
    ("name", "text"),
    [("kernel.cuh", SOURCE + "\n"), ("lib/outer.cuh", OUTER + "\n"), ("lib/inner.cuh", INNER.replace("1.0f", "2.0f"))],
)
def test_a_change_in_any_file_invalidates(project: Project, name: str, text: str) -> None:
    before = project.compile()
    project.write(name, text)
    assert project.compile().key != before.key
    assert project.compiled == 2


def test_defines_target_and_compiler_are_part_of_the_key(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {project.compile().key, project.compile(TL_N=4).key, project.compile(TL_M=1).key}
    keys.add(project.compile("sm_80").key)
    monkeypatch.setattr(nvrtc, "compiler_version", lambda: "another")
    keys.add(project.compile().key)
    assert len(keys) == 5


def test_the_order_of_defines_does_not_matter(project: Project) -> None:
    assert project.compile(TL_A=1, TL_B=2).key == project.compile(TL_B=2, TL_A=1).key


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"x" * 5000])
def test_a_damaged_entry_is_compiled_again(project: Project, damage: bytes) -> None:
    cubin = project.compile()
    (project.cache / f"{cubin.key}.cubin").write_bytes(damage)
    assert project.compile() == cubin
    assert project.compile() == cubin
    assert project.compiled == 2


def test_a_flipped_bit_in_an_entry_is_found(project: Project) -> None:
    cubin = project.compile()
    entry = project.cache / f"{cubin.key}.cubin"
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 1
    entry.write_bytes(data)
    assert project.compile() == cubin
    assert project.compiled == 2


def test_an_error_carries_the_log(project: Project) -> None:
    project.write("lib/inner.cuh", "__device__ float inner(int n) { return undeclared; }")
    with pytest.raises(
        BuildError, match=r'(?s)kernel\.cuh does not compile.*lib/inner\.cuh.*"undeclared" is undefined'
    ):
        project.compile()
    assert not project.cache.exists()


def test_a_missing_include_names_both_files(project: Project) -> None:
    (project.root / "lib" / "inner.cuh").unlink()
    with pytest.raises(BuildError, match=r"inner\.cuh, which .*outer\.cuh needs"):
        project.compile()


def test_headers_from_outside_are_refused(project: Project) -> None:
    project.write("lib/inner.cuh", "#include <cuda_fp16.h>\n" + INNER)
    with pytest.raises(BuildError, match=r"inner\.cuh includes <cuda_fp16.h>"):
        project.compile()


@pytest.mark.parametrize("arch", ["sm_12", "hopper", "sm_90x", "compute_90", ""])
def test_unknown_targets_list_the_known(project: Project, arch: str) -> None:
    with pytest.raises(BuildError, match=r"sm_90.*got"):
        project.compile(arch)


def test_a_missing_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(nvrtc, "import_module", missing)
    monkeypatch.setattr(nvrtc, "_nvrtc", nvrtc._nvrtc.__wrapped__)
    (tmp_path / "kernel.cuh").touch()
    with pytest.raises(BuildError, match=r"pip install 'trtllm_lite\[cuda\]'"):
        compile_kernel(tmp_path / "kernel.cuh", {}, "sm_80", include_root=tmp_path, cache_dir=tmp_path)


def test_what_is_in_the_cache_needs_no_compiler(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    cubin = project.compile()
    monkeypatch.delattr(nvrtc, "_nvrtc")
    assert project.compile() == cubin


def test_an_unwritable_cache_is_an_error(project: Project) -> None:
    project.cache.write_text("a file")
    with pytest.raises(BuildError, match="cannot write the kernel cache"):
        project.compile()
