"""Fused operators, one folder each: schema, numpy reference, kernels."""
