"""The tiled QKV product with RoPE and the cache write in its epilogue, in the shapes of models."""

import pytest
import torch

from tests.gpu.kernels import ModelShape
from tests.gpu.launches import H200
from tests.gpu.memory import NAMES
from tests.gpu.qkv_checks import check_qkv
from trtllm_lite.plugins.cuda.tiles import tile_configs
from trtllm_lite.plugins.cuda.weight_form import weight_form

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="the kernel is for sm_90a"
)

LLAMA = ModelShape(4096, 14336, 32, 8, 128, 1000, page=32)
SMALL = ModelShape(2048, 8192, 32, 8, 64, 1000, page=64, qkv_bias=True)


@pytest.mark.parametrize("rows", [17, 64, 129, 513])
@pytest.mark.parametrize("shape", [LLAMA, SMALL], ids=["128", "64"])
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8], ids=NAMES.get)
def test_every_candidate(shape: ModelShape, kind: torch.dtype, rows: int) -> None:
    form, capacity = weight_form(NAMES[kind], NAMES[kind]), max(64, -(-rows // 128) * 128)
    configs = tile_configs(shape.qkv_features, shape.hidden, form, capacity, False, H200, shape.head_dim)
    assert configs
    for number, config in enumerate(configs):
        cache_dtype = (None, torch.float8_e4m3fn, torch.int8)[number % 3]
        how = {"cache_dtype": cache_dtype, "plain_keys": number % 2 == 1}
        check_qkv(shape, config, rows, capacity, torch.bfloat16, kind, **how)
