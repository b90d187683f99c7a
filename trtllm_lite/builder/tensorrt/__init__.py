"""Engines for NVIDIA's TensorRT: the standard network with types and shapes that TensorRT has fast kernels for.

:mod:`passes` rewrite the network, which stays standard ONNX; :mod:`compile` hands it to the builder of TensorRT for
RTX, or of TensorRT, through :mod:`library`; :mod:`log` accounts for every line that the builder prints.
"""
