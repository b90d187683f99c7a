"""Kernels of int8 and 4-bit weights, without a GPU."""

from dataclasses import replace

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.kernels import ModelShape
from tests.gpu.memory import NAMES
from tests.gpu.qkv_checks import check_qkv
from tests.gpu.quantized_checks import check_codes, check_dequantize, check_few_rows
from tests.gpu.weights import Form
from trtllm_lite.plugins.cuda.few_rows import GemvConfig
from trtllm_lite.plugins.cuda.split_k import SplitKConfig
from trtllm_lite.plugins.cuda.weight_form import BlockNumbers, WeightForm, weight_form
from trtllm_lite.plugins.launch import Device

SMALL = Device("sm_90a", 64 * 1024)
FORMS = [
    Form("int8"),
    Form("int4", 64, "bfloat16"),
    Form("uint4", 32, "float16", offsets=True, zero_points=True),
    Form("uint4", 64, "float32", offsets=True),
    Form("float8_e4m3fn", 64, "float32"),
    Form("float4_e2m1fn", 32, "bfloat16"),
    Form("int8", 32, "float32", offsets=True),
]


def weight_form_of(form: Form) -> WeightForm:
    return weight_form(form.dtype, blocks=BlockNumbers(form.block, form.number, form.offsets) if form.block else None)


def config_of(form: Form, stage_k: int, tiles: int, stream_x: bool = False) -> GemvConfig:
    return GemvConfig(stage_k, 16 * tiles, stream_x, 16 * 1024, "", weight_form_of(form))


@pytest.mark.each_value
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (16, 9)])
def test_few_rows(form: Form, tokens: int, rows: int) -> None:
    dtype = torch.float16 if tokens == 1 else torch.bfloat16
    more = {"bias": True, "residual": True, "device": SMALL, "machine": Emulator()}
    check_few_rows(form, 56, 320, tokens, rows, dtype, config=config_of(form, 128, 1), **more)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("form", "teams"), [(FORMS[-3], 2), (FORMS[-2], 3)], ids=str)
def test_teams_go_round_a_short_ring(form: Form, teams: int, gated: bool, seed: int) -> None:
    """Each team has one stage of the ring and one is being filled, so that a team can be ahead of another."""
    config, tokens = replace(config_of(form, 128, 1), teams=teams, in_flight_bytes=1 << 20), 2
    full = Device("sm_90a", 64 * 1024)
    other = full.shared_bytes - config.ring_bytes(128, tokens, full.shared_bytes)
    device = Device("sm_90a", other + (teams + 1) * config.stage_bytes(tokens))
    how = {"config": config, "device": device, "blocks": 1, "gated": gated, "machine": Emulator(seed=seed)}
    check_few_rows(form, 600, 128, tokens, 2, torch.bfloat16, norm=True, **how)


@pytest.mark.parametrize(("form", "stream_x"), [(Form("float8_e4m3fn", 512), False), (Form("int4", 128), True)])
def test_one_warp_copies_long_rows(form: Form, stream_x: bool) -> None:
    stage_k, device = 1024 * 8 // weight_form_of(form).weight_bits, Device("sm_90a", 96 * 1024)
    config = config_of(form, stage_k, 1, stream_x)
    check_few_rows(form, 40, 2560, 2, 2, torch.bfloat16, config=config, device=device, machine=Emulator())


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_x_may_travel_with_the_weights(form: Form) -> None:
    config = config_of(form, 64, 2, True)
    check_few_rows(form, 96, 192, 4, 3, torch.bfloat16, config=config, device=SMALL, machine=Emulator())


SPLIT_FORMS = [
    *FORMS[:4],
    Form("bfloat16"),
    Form("int4", 128, "float16"),
    Form("int4", 256, "bfloat16", offsets=True),
    Form("uint4", 512, "float16", offsets=True),
]


@pytest.mark.each_value
@pytest.mark.parametrize("form", SPLIT_FORMS, ids=str)
@pytest.mark.parametrize(("splits", "tiles", "tokens", "rows"), [(2, 3, 4, 3), (4, 4, 4, 3), (4, 2, 16, 9)])
def test_blocks_of_a_cluster_may_share_rows(form: Form, splits: int, tiles: int, tokens: int, rows: int) -> None:
    """A cluster has several groups of tiles."""
    config = SplitKConfig(max(256, form.block), tiles, splits, 32 * 1024, "", weight_form_of(form))
    machine = Emulator(num_sms=splits, seed=tokens + splits)
    how = {"config": config, "device": Device("sm_90a", 128 * 1024), "machine": machine, "blocks": splits}
    norm = {"norm": tiles == 4, "residual": tiles == 3, "bias": tiles == 2}
    check_few_rows(form, 328, 2048, tokens, rows, torch.bfloat16, **norm, **how)


@pytest.mark.parametrize("form", [Form("float16"), Form("int8"), FORMS[2]], ids=str)
def test_blocks_of_a_cluster_may_share_gated_rows(form: Form) -> None:
    """Each block's share of the depth is not a whole number of stages."""
    config = SplitKConfig(256, 4, 2, 32 * 1024, "", weight_form_of(form))
    how = {"config": config, "device": Device("sm_90a", 96 * 1024), "machine": Emulator(num_sms=2), "blocks": 2}
    check_few_rows(form, 72, 768, 8, 5, torch.float16, gated=True, norm=True, **how)


@pytest.mark.each_value
@pytest.mark.parametrize("form", [torch.bfloat16, torch.float16, Form("int8"), Form("int4", 128, "bfloat16")], ids=str)
@pytest.mark.parametrize("rotary_dim", [64, 32])
def test_blocks_of_a_cluster_may_share_rows_of_heads(form: Form | torch.dtype, rotary_dim: int) -> None:
    shape = ModelShape(512, 1024, 3, 1, 64, 1000, page=32, qkv_bias=True)
    kernel_form = weight_form_of(form) if isinstance(form, Form) else weight_form(NAMES[form])
    config = SplitKConfig(256, 4, 2, 32 * 1024, "", kernel_form)
    dtype = form if isinstance(form, torch.dtype) else torch.bfloat16
    check_qkv(shape, config, 5, 8, dtype, form, rotary_dim=rotary_dim, machine=Emulator(num_sms=2))


@pytest.mark.parametrize("form", FORMS[:4], ids=str)
def test_gated(form: Form) -> None:
    how = {"config": config_of(form, 128, 1), "device": SMALL, "machine": Emulator()}
    check_few_rows(form, 24, 192, 2, 2, torch.bfloat16, gated=True, norm=True, **how)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float4_e2m1fn"])
def test_every_code_is_converted_exactly(name: str, dtype: torch.dtype) -> None:
    check_codes(name, dtype, Emulator())


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", [*FORMS[:4], FORMS[-1]], ids=str)
def test_dequantize(form: Form, dtype: torch.dtype) -> None:
    check_dequantize(form, 8, 128, dtype, Emulator())


@pytest.mark.parametrize("form", [Form("bfloat16"), Form("int8")], ids=str)
@pytest.mark.parametrize("tokens", [2, 8])
def test_gated_rows_of_adapters_are_added_before_the_activation(form: Form, tokens: int) -> None:
    how = {"gated": True, "residual": True, "machine": Emulator()}
    check_few_rows(form, 72, 1024, tokens, tokens - 1, torch.bfloat16, **how)
