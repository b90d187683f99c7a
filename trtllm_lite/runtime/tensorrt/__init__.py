"""Runs networks that TensorRT compiled: ``network`` uses ``steps``, ``tensors``, ``library`` and ``cuda``."""
