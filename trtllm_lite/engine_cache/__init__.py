"""The cache of engines that ``LLM`` makes from models, and of intermediate results of ``LLM`` and builds.

Intermediate results are checkpoints, and networks that TensorRT compiled.
"""

from trtllm_lite.engine_cache.recipe import Conversion, Recipe
from trtllm_lite.engine_cache.store import SIZE_VARIABLE, Entry, cache_limit, clear_cache, list_cache

__all__ = [
    "SIZE_VARIABLE",
    "Conversion",
    "Entry",
    "Recipe",
    "cache_limit",
    "clear_cache",
    "list_cache",
]
