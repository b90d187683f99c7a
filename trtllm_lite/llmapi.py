"""Repeats TensorRT-LLM's module of names that ``trtllm_lite`` has itself, so that imports from it work."""

from typing import Any

import trtllm_lite

__all__ = trtllm_lite.__all__


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(trtllm_lite, name)
