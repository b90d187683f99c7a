"""The kernels of DynamicTanh, against its reference; the package must be installed."""

from pathlib import Path

import numpy as np
import pytest

from trtllm_lite import _core
from trtllm_lite.builder.nvrtc import compile_kernel
from trtllm_lite.plugins.packages import load_kernels, source_path
from trtllm_lite.plugins.schema import all_schemas

OPERATOR = "DynamicTanh"


@pytest.mark.parametrize(("rows", "hidden"), [(1, 1), (3, 17), (65, 264)])
def test_the_kernel_for_cpus(rows: int, hidden: int) -> None:
    load_kernels("trtllm-lite-dynamic-tanh")
    random = np.random.default_rng(rows)
    x, y = (random.normal(0, 3, (rows, hidden)).astype(np.float32) for _ in range(2))
    weight, bias = random.normal(1, 0.2, (2, hidden)).astype(np.float32)
    inputs = [x, np.array([0.7], np.float32), weight, bias]
    _core.run_kernel(OPERATOR, inputs, [y], {})
    (expected,) = all_schemas()[OPERATOR].part("reference").reference(inputs, {})
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_kernel_for_gpus_compiles(arch: str, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="the cuda extra is not installed")
    defines = {"TL_HIDDEN": 4096, "TL_THREADS": 256, "TL_FP16": 0}
    assert compile_kernel(source_path("dynamic_tanh/cuda.cuh"), defines, arch, cache_dir=tmp_path).image
