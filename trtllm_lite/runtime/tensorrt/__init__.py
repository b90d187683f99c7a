"""Runs networks that TensorRT compiled: ``network.py`` over ``steps``, ``tensors``, ``library`` and ``cuda``."""
