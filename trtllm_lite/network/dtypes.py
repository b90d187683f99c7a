"""Maps the dtypes of the vocabulary to onnx_ir and numpy."""

import onnx_ir as ir

from trtllm_lite.common.vocabulary import DTYPES, PLAIN_DTYPES

ONNX = {name: ir.DataType[dtype.onnx] for name, dtype in DTYPES.items()}
NUMPY = {name: dtype.numpy() for name, dtype in ONNX.items()}
DTYPE_NAMES = {dtype: name for name, dtype in ONNX.items()}
PLAIN_ONNX = tuple(ONNX[name] for name in PLAIN_DTYPES)
