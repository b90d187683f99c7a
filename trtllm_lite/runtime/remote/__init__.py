"""Drives stages of engines in other processes; how these are reached is left to others, such as ``runtime/ray``."""
