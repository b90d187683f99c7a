"""DynamicTanh on a GPU."""

from trtllm_lite.plugins.cuda.lowering import Lowering
from trtllm_lite.plugins.launch import DTYPE_FLAGS, Command, features, kernel, launch

_THREADS = 256


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel with a block for each row."""
    x, y = op.rows("x"), op.new("y")
    if features(x) % 8:
        op.refuse(f"rows have {features(x)} elements, expected a multiple of 8: build for --target cpu")
    defines = {"TL_HIDDEN": features(x), "TL_THREADS": _THREADS, "TL_FP16": DTYPE_FLAGS[x.dtype]}
    specialised = kernel("dynamic_tanh/cuda.cuh", "dynamic_tanh", _THREADS, 0, defines)
    weights = (op.vector(name) for name in ("alpha", "weight", "bias"))
    return [launch(specialised, (op.num_rows("y"),), y, x, *weights)]
