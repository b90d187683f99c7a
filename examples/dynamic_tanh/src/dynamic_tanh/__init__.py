"""Llama with Dynamic Tanh (DyT, arXiv 2503.10622) instead of norms: a family, an operator, and a pass."""
