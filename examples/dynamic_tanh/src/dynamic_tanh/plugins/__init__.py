"""Fused operators, one folder each, as in trtllm_lite's own ``plugins/``."""
