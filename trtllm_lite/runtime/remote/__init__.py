"""Stages of engines in other processes, however these are reached (``runtime/ray`` is one way)."""
