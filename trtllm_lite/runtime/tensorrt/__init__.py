"""Runs networks that TensorRT compiled: ``network.py`` over ``steps.py``, ``library.py`` and ``cuda.py``."""
