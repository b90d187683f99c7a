"""Fixtures of the kernel tests."""

from tests.plugins.harness import isa

__all__ = ["isa"]
