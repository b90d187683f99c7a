"""The cache of the engines that ``LLM`` makes of models, and of the checkpoints that it makes on the way."""

from trtllm_lite.engine_cache.make import open_cached
from trtllm_lite.engine_cache.recipe import Recipe
from trtllm_lite.engine_cache.store import SIZE_VARIABLE, Entry, cache_limit, clear_cache, list_cache

__all__ = ["SIZE_VARIABLE", "Entry", "Recipe", "cache_limit", "clear_cache", "list_cache", "open_cached"]
