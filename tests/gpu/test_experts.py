"""Routers and expert products on a GPU."""

from dataclasses import replace

import pytest
import torch

from tests.gpu.device import GPU
from tests.gpu.expert_checks import (
    Mixture,
    check_even_groups,
    check_experts,
    check_groups_alike,
    check_router,
    check_summed_norm,
)
from tests.gpu.weights import Form
from trtllm_lite.plugins.cuda.grouped import ExpertChoice

# Shapes of Qwen3-30B-A3B, Mixtral 8x7B, and OLMoE with fewer features.
SHAPES = {"qwen3": (128, 8, 2048, 768), "mixtral": (8, 2, 4096, 14336), "olmoe": (64, 8, 1024, 512)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("max_rows", "rows"), [(1, 1), (8, 5), (16, 16)])
def test_a_few_rows_choose(shape: str, max_rows: int, rows: int) -> None:
    experts, top_k, *_ = SHAPES[shape]
    check_router(Mixture(experts, top_k, 0, 0, max_rows), rows, gemv=True, machine=GPU)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("max_rows", "rows"), [(1, 1), (64, 37), (64, 64), (512, 401), (8192, 8192), (8192, 5003)])
def test_rows_are_sorted_by_expert(shape: str, max_rows: int, rows: int) -> None:
    experts, top_k, *_ = SHAPES[shape]
    check_router(Mixture(experts, top_k, 0, 0, max_rows), rows, gemv=False, machine=GPU)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("residual", [False, True])
def test_sums_are_normed(shape: str, dtype: torch.dtype, residual: bool) -> None:
    how = {"residual": residual, "shares": residual, "machine": GPU}
    check_summed_norm(Mixture(*SHAPES[shape], 128), 101, dtype, **how)


# Shapes of DeepSeek-V2 and V3 and Llama 4 Scout.
ROUTERS = {
    "deepseek_v2": Mixture(160, 6, 0, 0, 16, "softmax", groups=(8, 3, 1), scale=16.0),
    "deepseek_v3": Mixture(256, 8, 0, 0, 16, "normalized_sigmoid", groups=(8, 4, 2), scale=2.5),
    "llama4": Mixture(16, 1, 0, 0, 16, "sigmoid_of_chosen"),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_routers(name: str) -> None:
    mixture, corrected = ROUTERS[name], name == "deepseek_v3"
    check_router(mixture, 13, gemv=True, corrected=corrected, machine=GPU)
    check_router(replace(mixture, max_rows=8192), 5003, gemv=False, corrected=corrected, machine=GPU)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", ["qwen3", "olmoe"])
@pytest.mark.parametrize(("max_rows", "rows"), [(2, 2), (8, 7), (16, 16)])
def test_few_rows(shape: str, dtype: torch.dtype, max_rows: int, rows: int) -> None:
    mixture = Mixture(*SHAPES[shape], max_rows)
    check_experts(mixture, rows, dtype, gemv=True, norm=max_rows < 16, residual=max_rows > 2, machine=GPU)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("max_rows", "rows"), [(2, 2), (8, 5), (16, 16), (64, 37), (1000, 513)])
def test_biases(max_rows: int, rows: int, dtype: torch.dtype) -> None:
    """The shape is that of gpt-oss-20b."""
    mixture, how = Mixture(32, 4, 2880, 2880, max_rows, "softmax_of_chosen"), {"gemv": max_rows <= 16}
    check_router(mixture, rows, biased=True, machine=GPU, **how)
    check_experts(mixture, rows, dtype, biased=True, residual=rows % 2 == 0, machine=GPU, **how)


@pytest.mark.parametrize(("max_rows", "rows"), [(8, 5), (1000, 513)])
def test_shares_of_inputs(max_rows: int, rows: int) -> None:
    """The shape is that of Llama 4 Scout, with fewer features."""
    mixture = Mixture(16, 1, 1280, 2048, max_rows, "sigmoid_of_chosen", scales_inputs=True)
    check_experts(mixture, rows, torch.bfloat16, gemv=max_rows <= 16, machine=GPU)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("max_rows", "rows"), [(64, 37), (256, 256), (1000, 513)])
def test_tiled(shape: str, max_rows: int, rows: int) -> None:
    mixture = Mixture(*SHAPES[shape], max_rows, "softmax")
    check_experts(mixture, rows, torch.bfloat16, gemv=False, residual=rows % 2 == 0, machine=GPU)


FORMS = [Form("int4", 128, "bfloat16"), Form("uint4", 32, "float16", offsets=True)]


# Shapes of Qwen3-30B-A3B and gpt-oss with fewer experts.
FLOATS = {
    "fp8": ((16, 8, 2048, 768), Form("float8_e4m3fn", 128, "float32")),
    "fp8 rows": ((64, 8, 1024, 512), Form("float8_e4m3fn", 512, "bfloat16")),
    "mxfp4": ((16, 8, 2048, 768), Form("float4_e2m1fn", 32, "bfloat16")),
    "gpt-oss": ((8, 4, 2880, 2880), Form("float4_e2m1fn", 32, "bfloat16")),
    "q8_0": ((16, 8, 2048, 768), Form("int8", 32, "float16")),
    "gpt-oss fp8": ((8, 4, 2880, 2880), Form("float8_e4m3fn", 64, "float32")),
}
STEPS = [
    (1, 1),
    (4, 3),
    (8, 8),
    (16, 16),
    (64, 37),
    (256, 256),
    (1000, 513),
]  # up to 8 by GEMV


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize(("max_rows", "rows"), STEPS)
def test_floats(name: str, max_rows: int, rows: int) -> None:
    shape, form = FLOATS[name]
    dtype = torch.float16 if max_rows in (8, 256) else torch.bfloat16
    mixture, how = Mixture(*shape, max_rows), {"norm": max_rows == 4, "residual": max_rows == 8}
    check_experts(mixture, rows, dtype, gemv=max_rows <= 8, form=form, machine=GPU, **how)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("max_rows", "rows"), [(2, 2), (16, 9), (64, 37), (1000, 513)])
def test_four_bits(form: Form, max_rows: int, rows: int) -> None:
    mixture = Mixture(*SHAPES["qwen3"], max_rows)
    check_experts(mixture, rows, torch.bfloat16, gemv=max_rows <= 16, form=form, machine=GPU)


ALIKE = {**FLOATS, "bfloat16": (SHAPES["qwen3"], Form("bfloat16")), "int4": (SHAPES["qwen3"], FORMS[0])}


@pytest.mark.parametrize("name", ["fp8", "mxfp4", "gpt-oss", "q8_0", "bfloat16", "int4"])
@pytest.mark.parametrize("width", [0, 1, 2])
def test_rows_get_the_same_bits_in_groups_and_tiles_of_any_size(name: str, width: int) -> None:
    """Deterministic engines have programs for groups of several sizes, with tiles of several widths."""
    (_, _, hidden, inner), form = ALIKE[name]
    check_groups_alike(hidden, inner, form, width, GPU)


@pytest.mark.parametrize(("max_rows", "rows"), [(64, 64), (1024, 1000)])
@pytest.mark.parametrize("local", [128, 32])
def test_rows_choose_evenly(local: int, max_rows: int, rows: int) -> None:
    check_even_groups(ExpertChoice(128, 8, local), max_rows, rows, GPU)
