"""The engine file: write, read, inspect. Imports neither onnx nor onnx_ir, so that the runtime can use it."""
