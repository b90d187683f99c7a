"""The fixture that runs a test with each instruction set of the processor."""

from tests.plugins.harness import isa

__all__ = ["isa"]
