"""Products of many rows without a GPU: boxes that blocks share, widened weights, epilogues."""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu import byte_checks, quantized_checks
from tests.gpu.weights import Form
from trtllm_lite.plugins.cuda.tiles import TileConfig

INT4 = Form("int4", 64, "bfloat16")


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8])
def test_bytes(kind: torch.dtype) -> None:
    how = {"static": None, "residual": True, "machine": Emulator(num_sms=8)}
    byte_checks.check_tiled(kind, TileConfig(128, 64, 2, 1, 2, ""), 104, 512, 137, 256, torch.bfloat16, **how)
    how = {"static": 0.03125, "gated": True, "y_scale": 0.25, "machine": Emulator()}
    byte_checks.check_tiled(kind, TileConfig(64, 96, 1, 1, 1, ""), 104, 192, 37, 64, torch.float16, **how)


@pytest.mark.parametrize("form", [Form("int8"), INT4, Form("uint4", 32, "float16", offsets=True)], ids=str)
def test_widened(form: Form) -> None:
    machine = Emulator(num_sms=4)
    config = TileConfig(64, 48, 1, 2, 1, "")
    quantized_checks.check_tiled(form, config, 104, 320, 37, 64, torch.float16, residual=True, machine=machine)
    config = TileConfig(64, 64, 1, 1, 1, "")
    quantized_checks.check_tiled(form, config, 40, 256, 64, 64, torch.bfloat16, gated=True, machine=machine)
