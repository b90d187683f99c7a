"""Kernels of int8 and 4-bit weights, without a GPU."""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.quantized_checks import check_dequantize, check_streamed
from tests.gpu.weights import Form
from trtllm_lite.plugins.cuda.split import SplitConfig
from trtllm_lite.plugins.cuda.stream import StreamConfig
from trtllm_lite.plugins.cuda.weight_form import BlockNumbers, WeightForm, weight_form
from trtllm_lite.plugins.launch import Device

SMALL = Device("sm_90a", 64 * 1024)
FORMS = [
    Form("int8"),
    Form("int4", 64, "bfloat16"),
    Form("uint4", 32, "float16", offsets=True, zero_points=True),
    Form("uint4", 64, "float32", offsets=True),
]


def weight_form_of(form: Form) -> WeightForm:
    return weight_form(form.dtype, blocks=BlockNumbers(form.block, form.number, form.offsets) if form.block else None)


def config_of(form: Form, stage_k: int, tiles: int, stream_x: bool = False) -> StreamConfig:
    return StreamConfig(stage_k, tiles, stream_x, 16 * 1024, "", weight_form_of(form))


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (16, 9)])
def test_streamed(form: Form, tokens: int, rows: int) -> None:
    dtype = torch.float16 if tokens == 1 else torch.bfloat16
    more = {"bias": True, "residual": True, "device": SMALL, "machine": Emulator()}
    check_streamed(form, 56, 320, tokens, rows, dtype, config=config_of(form, 128, 1), **more)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_x_may_travel_with_the_weights(form: Form) -> None:
    config = config_of(form, 64, 2, True)
    check_streamed(form, 96, 192, 4, 3, torch.bfloat16, config=config, device=SMALL, machine=Emulator())


@pytest.mark.parametrize("form", [*FORMS, Form("int4", 256, "bfloat16", offsets=True)], ids=str)
@pytest.mark.parametrize(("splits", "tiles", "tokens", "rows"), [(2, 3, 4, 3), (4, 4, 16, 9)])
def test_blocks_of_a_cluster_may_share_rows(form: Form, splits: int, tiles: int, tokens: int, rows: int) -> None:
    config = SplitConfig(256, tiles, splits, 32 * 1024, "", weight_form_of(form))
    how = {"config": config, "device": Device("sm_90a", 96 * 1024), "machine": Emulator(num_sms=2 * splits)}
    norm = {"norm": tokens == 4, "residual": tokens == 16}
    check_streamed(form, 328, 1024, tokens, rows, torch.bfloat16, **norm, **how)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_gated(form: Form) -> None:
    how = {"config": config_of(form, 128, 1), "device": SMALL, "machine": Emulator()}
    check_streamed(form, 24, 192, 2, 2, torch.bfloat16, gated=True, norm=True, **how)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_dequantize(form: Form, dtype: torch.dtype) -> None:
    check_dequantize(form, 8, 128, dtype, Emulator())
