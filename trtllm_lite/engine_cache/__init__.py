"""Engines that ``LLM`` makes of models, kept by the content of what they are made of, and the checkpoints between."""

from trtllm_lite.engine_cache.make import open_cached
from trtllm_lite.engine_cache.recipe import Recipe
from trtllm_lite.engine_cache.store import SIZE_VARIABLE, Entry, cache_limit, clear_cache, list_cache

__all__ = ["SIZE_VARIABLE", "Entry", "Recipe", "cache_limit", "clear_cache", "list_cache", "open_cached"]
