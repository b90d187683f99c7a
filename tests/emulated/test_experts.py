"""Routers and expert products, without a GPU."""

from dataclasses import replace

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.expert_checks import (
    Lists,
    Mixture,
    check_even_groups,
    check_experts,
    check_groups_alike,
    check_router,
    check_summed_norm,
    choose,
    expected_choice,
    random_scores,
)
from tests.gpu.launches import H200
from tests.gpu.memory import Memory
from tests.gpu.weights import Form
from trtllm_lite.plugins.cuda.grouped import ExpertChoice, feature_grain
from trtllm_lite.plugins.cuda.weight_form import weight_form
from trtllm_lite.plugins.launch import Device

SMALL = Device("sm_90a", 64 * 1024)
FORMS = [Form("int4", 64, "bfloat16"), Form("uint4", 32, "float16", offsets=True)]
FP8, MXFP4, BYTES = Form("float8_e4m3fn", 64), Form("float4_e2m1fn", 32, "bfloat16"), Form("int8", 32, offsets=True)


@pytest.mark.each_value
@pytest.mark.parametrize(("experts", "top_k", "scoring"), [(8, 2, "softmax_of_chosen"), (40, 5, "softmax")])
@pytest.mark.parametrize(("max_rows", "rows"), [(1, 1), (4, 3), (16, 16)])
def test_a_few_rows_choose(experts: int, top_k: int, scoring: str, max_rows: int, rows: int) -> None:
    check_router(Mixture(experts, top_k, 0, 0, max_rows, scoring), rows, gemv=True, machine=Emulator())


@pytest.mark.each_value
@pytest.mark.parametrize(("experts", "top_k", "scoring"), [(8, 2, "normalized_softmax"), (40, 5, "softmax")])
@pytest.mark.parametrize(("max_rows", "rows"), [(1, 1), (64, 37), (256, 200), (1024, 530)])
def test_rows_are_sorted_by_expert(experts: int, top_k: int, scoring: str, max_rows: int, rows: int) -> None:
    check_router(Mixture(experts, top_k, 0, 0, max_rows, scoring), rows, gemv=False, machine=Emulator())


def test_threads_that_have_several_experts_sort() -> None:
    check_router(Mixture(300, 7, 0, 0, 24, "softmax_of_chosen"), 21, gemv=False, machine=Emulator())


# Routers like those of DeepSeek-V2 (groups ranked by their best expert), V3 (by their two best), Llama 4, and others.
ROUTERS = {
    "deepseek_v2": Mixture(40, 5, 0, 0, 4, "softmax", groups=(8, 3, 1), scale=1.5),
    "deepseek_v3": Mixture(64, 8, 0, 0, 4, "normalized_sigmoid", groups=(4, 2, 2), scale=2.5),
    "llama4": Mixture(16, 1, 0, 0, 4, "sigmoid_of_chosen"),
    "sums": Mixture(48, 4, 0, 0, 4, "normalized_softmax", groups=(3, 2, 3), scale=0.5),
    "sigmoid": Mixture(12, 3, 0, 0, 4, "sigmoid"),
    "softmax_of_chosen": Mixture(24, 4, 0, 0, 4, "softmax_of_chosen", groups=(4, 2, 1)),
    "phimoe": Mixture(16, 2, 0, 0, 4, "sparse_mixer", threshold=0.29),
    "mixer of groups": Mixture(48, 4, 0, 0, 4, "sparse_mixer", groups=(3, 2, 1), scale=1.5, threshold=0.29),
    # Routers with shared experts.
    "mixer": Mixture(66, 5, 0, 0, 4, "sparse_mixer", threshold=0.29, shared=2, gate=True),
    "qwen": Mixture(65, 9, 0, 0, 4, "normalized_softmax", shared=1, gate=True),
    "two shared": Mixture(34, 6, 0, 0, 4, "softmax", groups=(8, 3, 1), scale=1.5, shared=2),
    "four shared": Mixture(20, 8, 0, 0, 4, "normalized_sigmoid", scale=2.5, shared=4, gate=True),
    "llama4 shared": Mixture(17, 2, 0, 0, 4, "sigmoid_of_chosen", shared=1),
}


# Biases are odd numbers where choices go by sums of several scores, so that only rounding can make two sums equal.
CORRECTED = [(name, True) for name in ROUTERS]
AS_THEY_ARE = [(name, False) for name, mixture in ROUTERS.items() if mixture.groups[2] == 1]


@pytest.mark.parametrize(("name", "corrected"), CORRECTED + AS_THEY_ARE)
def test_routers(name: str, corrected: bool) -> None:
    mixture, machine = ROUTERS[name], Emulator()
    check_router(mixture, 3, gemv=True, corrected=corrected, machine=machine)
    check_router(replace(mixture, max_rows=64), 37, gemv=False, corrected=corrected, machine=machine)


@pytest.mark.parametrize("name", ["qwen", "two shared"])
def test_routers_with_factors_of_experts(name: str) -> None:
    mixture, machine = ROUTERS[name], Emulator()
    check_router(mixture, 3, gemv=True, with_factors=True, machine=machine)
    check_router(replace(mixture, max_rows=64), 37, gemv=False, corrected=True, with_factors=True, machine=machine)


@pytest.mark.parametrize("name", ["qwen", "four shared"])
@pytest.mark.parametrize(("max_rows", "rows"), [(1, 1), (16, 16), (300, 300), (1024, 530)])
def test_all_rows_have_shared_experts(name: str, max_rows: int, rows: int) -> None:
    """Groups of a shared expert's rows are as large as those of the others."""
    mixture = replace(ROUTERS[name], max_rows=max_rows)
    check_router(mixture, rows, gemv=max_rows <= 16, biased=name == "qwen", machine=Emulator())


@pytest.mark.parametrize(("max_rows", "rows"), [(1, 1), (4, 3), (16, 16), (64, 64), (300, 300)])
@pytest.mark.parametrize("scales_inputs", [False, True])
def test_shared_experts_are_computed(max_rows: int, rows: int, scales_inputs: bool) -> None:
    scoring = "sigmoid_of_chosen" if scales_inputs else "normalized_softmax"
    shared = {"shared": 1 if scales_inputs else 2, "gate": not scales_inputs}
    mixture = Mixture(9, 3, 128, 48, max_rows, scoring, scales_inputs=scales_inputs, **shared)
    gemv, machine = max_rows <= 16, Emulator(num_sms=3)
    device = SMALL if gemv else H200
    check_experts(mixture, rows, torch.bfloat16, gemv=gemv, residual=rows != 3, device=device, machine=machine)


def test_a_block_has_more_tiles_of_shared_experts_than_stages() -> None:
    """The block's first stages are full before its list of experts is there."""
    mixture = Mixture(9, 3, 128, 176, 2, "softmax", shared=2)
    check_experts(mixture, 2, torch.bfloat16, gemv=True, device=SMALL, machine=Emulator(num_sms=1))


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "llama4", "qwen"])
def test_rows_that_are_no_numbers_choose_experts_that_exist(name: str) -> None:
    mixture, memory = ROUTERS[name], Memory()
    lists = Lists(mixture, memory, "cpu")
    scores = random_scores(mixture, 3, "cpu")
    scores[1] = float("nan")
    choose(mixture, memory, lists, scores, gemv=True, machine=Emulator())
    ids, shares = (memory.tensors[buffer] for buffer in (lists.ids, lists.shares))
    assert len(set(ids[1].tolist())) == mixture.top_k
    assert bool(((ids[1] >= 0) & (ids[1] < mixture.experts)).all())
    expected_ids, expected_shares = expected_choice(mixture, scores[::2])
    assert torch.equal(ids[:3:2].long(), expected_ids)
    torch.testing.assert_close(shares[:3:2].double(), expected_shares, rtol=1e-5, atol=1e-7)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("max_rows", "rows"), [(2, 2), (16, 9)])
def test_few_rows(dtype: torch.dtype, max_rows: int, rows: int) -> None:
    mixture = Mixture(8, 3, 128, 48, max_rows)
    how = {"norm": max_rows == 2, "residual": max_rows == 16, "device": SMALL, "machine": Emulator(num_sms=3)}
    check_experts(mixture, rows, dtype, gemv=True, **how)


@pytest.mark.parametrize("form", [None, FP8], ids=str)
@pytest.mark.parametrize(("gemv", "max_rows", "rows"), [(True, 2, 2), (False, 64, 37)])
def test_experts_gate_themselves(gemv: bool, max_rows: int, rows: int, form: Form | None) -> None:
    mixture = Mixture(9, 3, 128, 64, max_rows, "normalized_sigmoid", shared=1, self_gated=True)
    machine = Emulator(num_sms=3)
    check_experts(mixture, rows, torch.bfloat16, gemv=gemv, residual=True, form=form, machine=machine)


@pytest.mark.parametrize(("gemv", "max_rows", "rows"), [(True, 4, 3), (True, 16, 16), (False, 64, 37)])
def test_biases(gemv: bool, max_rows: int, rows: int) -> None:
    """Biases of router scores and of experts; gate and up projections are clamped."""
    router, machine = Mixture(40, 5, 0, 0, max_rows, "softmax_of_chosen"), Emulator(num_sms=3)
    check_router(router, rows, gemv=gemv, biased=True, machine=machine)
    mixture, how = Mixture(8, 3, 128, 80, max_rows), {"residual": max_rows != 16, "norm": max_rows == 4}
    device = SMALL if gemv else H200
    check_experts(mixture, rows, torch.bfloat16, gemv=gemv, biased=True, device=device, machine=machine, **how)


@pytest.mark.parametrize(("max_rows", "rows"), [(8, 5), (64, 33)])
def test_shares_of_inputs(max_rows: int, rows: int) -> None:
    mixture, machine = Mixture(8, 1, 128, 48, max_rows, "sigmoid_of_chosen", scales_inputs=True), Emulator(num_sms=3)
    gemv = max_rows <= 16
    device = SMALL if gemv else H200
    check_experts(mixture, rows, torch.bfloat16, gemv=gemv, residual=True, device=device, machine=machine)


@pytest.mark.parametrize(("max_rows", "rows"), [(16, 16), (64, 33), (160, 160)])
def test_tiled(max_rows: int, rows: int) -> None:
    """Groups of rows are smaller than a tile, and some experts have several groups."""
    mixture = Mixture(8, 2, 128, 80, max_rows, "softmax")
    machine = Emulator(num_sms=3)
    check_experts(mixture, rows, torch.bfloat16, gemv=False, residual=rows == 33, machine=machine)


@pytest.mark.parametrize(("hidden", "dtype"), [(72, torch.float16), (2880, torch.bfloat16), (4200, torch.bfloat16)])
def test_sums_are_normed(hidden: int, dtype: torch.dtype) -> None:
    """A row has fewer vectors than the block has threads, as many, or more."""
    mixture, is_long = Mixture(8, 3, hidden, 0, 4), hidden > 4096
    check_summed_norm(mixture, 3, dtype, residual=not is_long, shares=hidden != 72, machine=Emulator())


@pytest.mark.each_value
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("max_rows", "rows"), [(2, 2), (16, 9)])
def test_few_rows_in_four_bits(form: Form, max_rows: int, rows: int) -> None:
    mixture, device = Mixture(6, 3, 128, 64, max_rows), Device("sm_90a", 96 * 1024)
    how = {"norm": max_rows == 2, "form": form, "device": device, "machine": Emulator(num_sms=3)}
    check_experts(mixture, rows, torch.bfloat16, gemv=True, **how)


@pytest.mark.parametrize(("hidden", "form"), [(1152, FP8), (2176, MXFP4), (4224, MXFP4)], ids=str)
def test_blocks_share_out_sums_by_eights(hidden: int, form: Form) -> None:
    """A stage has 16, 24 or 32 rows of the weight; a few blocks have many stages each, the last of which is smaller."""
    mixture, machine = Mixture(4, 2, hidden, 128, 4), Emulator(num_sms=3)
    check_experts(mixture, 3, torch.bfloat16, gemv=True, residual=True, form=form, machine=machine)


@pytest.mark.parametrize("form", [Form("bfloat16"), FP8, FORMS[1]], ids=str)
@pytest.mark.parametrize("shared", [0, 1])
def test_blocks_share_out_features_one_by_one(form: Form, shared: int) -> None:
    """Blocks begin and end within runs of eight features, whose rows and numbers they copy to their places."""
    mixture = Mixture(9, 3, 1152, 448, 1, "normalized_softmax", shared=shared)
    for features in (3 * mixture.inner, mixture.hidden):
        assert feature_grain(features, weight_form("bfloat16")) == 1
    how = {"norm": True, "residual": True, "form": form, "machine": Emulator(num_sms=17)}
    check_experts(mixture, 1, torch.bfloat16, gemv=True, **how)


@pytest.mark.each_value
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("max_rows", "rows"), [(64, 33), (400, 300)])
def test_tiled_in_four_bits(form: Form, max_rows: int, rows: int) -> None:
    """Tiles for more rows have fewer columns, because more rows share each dequantized weight."""
    mixture, machine = Mixture(4, 2, 256, 128, max_rows, "softmax"), Emulator(num_sms=3)
    check_experts(mixture, rows, torch.float16, gemv=False, form=form, machine=machine)


@pytest.mark.parametrize(
    ("form", "max_rows", "rows"),
    [
        *((FP8, 4, 3), (FP8, 8, 7), (MXFP4, 1, 1), (MXFP4, 8, 8), (BYTES, 4, 4)),
        *((FP8, 16, 9), (FP8, 400, 300), (MXFP4, 64, 33), (BYTES, 64, 33)),
    ],
    ids=str,
)
def test_blocks_that_are_dequantized(form: Form, max_rows: int, rows: int) -> None:
    """The last row is NaN, and must not spread to the rows beside it."""
    mixture, gemv = Mixture(6, 3, 128, 64, max_rows), max_rows <= 8
    how = {"norm": max_rows == 4, "form": form, "device": Device("sm_90a", 96 * 1024), "machine": Emulator(num_sms=3)}
    check_experts(mixture, rows, torch.bfloat16, gemv=gemv, **how)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_sorts_choices_of_its_own_experts(rank: int) -> None:
    mixture = Mixture(8, 2, 0, 0, 1024, "softmax", of_rank=2, rank=rank)
    check_router(mixture, 100, gemv=False, machine=Emulator())


@pytest.mark.parametrize(("max_rows", "rows"), [(16, 9), (64, 37)])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_computes_its_own_experts(max_rows: int, rows: int, rank: int) -> None:
    """Some rows have chosen none of the rank's experts, and a few rows have chosen only the rank's experts."""
    mixture, gemv = Mixture(8, 2, 128, 64, max_rows, "softmax", of_rank=2, rank=rank), max_rows <= 16
    check_router(mixture, rows, gemv=gemv, machine=Emulator())
    biased = {"biased": True, "residual": True, "device": SMALL}
    check_experts(mixture, rows, torch.bfloat16, gemv=gemv, **biased, machine=Emulator(num_sms=3))


# The cases cover every tile width of the swap-AB and the tiled products.
WIDTHS = [(FP8, 0), (MXFP4, 1), (BYTES, 2), (Form("int4", 64, "bfloat16"), 0), (Form("bfloat16"), 1)]


@pytest.mark.parametrize(("form", "width"), WIDTHS, ids=str)
def test_rows_get_the_same_bits_in_groups_and_tiles_of_any_size(form: Form, width: int) -> None:
    """The depth is no whole number of stages, and the features are no whole number of tiles."""
    check_groups_alike(320, 192, form, width, Emulator(num_sms=3))


@pytest.mark.parametrize(
    ("choice", "max_rows", "rows"),
    [
        (ExpertChoice(128, 8, 128), 64, 64),
        (ExpertChoice(300, 3, 300), 512, 501),  # more experts than threads
        (ExpertChoice(32, 4, 8), 8192, 1000),  # several groups of experts; a rank has a quarter of the experts
        (ExpertChoice(64, 2, 16), 16, 7),  # some experts are chosen by no row
        (ExpertChoice(257, 9, 257, shared=1), 64, 64),
        (ExpertChoice(68, 12, 68, shared=4), 512, 301),  # several groups of a shared expert
    ],
)
def test_rows_choose_evenly(choice: ExpertChoice, max_rows: int, rows: int) -> None:
    check_even_groups(choice, max_rows, rows, Emulator())
