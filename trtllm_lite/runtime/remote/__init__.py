"""Drives stages of engines in other processes, whichever way these are reached (``runtime/ray`` is one)."""
