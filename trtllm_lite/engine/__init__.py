"""Writes, reads and inspects engine files. It imports neither onnx nor onnx_ir, so that the runtime can use it."""
