"""Compiles a checkpoint into an engine: fuse, remove padding, plan memory, serialize.

A build needs no GPU, and never holds more than one weight in memory.
"""

from trtllm_lite.builder.build import Progress, build_engine, choose_limits, least_tp_size, plan_memory
from trtllm_lite.builder.checkpoint import Checkpoint, checkpoint_of_shape, open_checkpoint
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.memory import MemoryPlan

__all__ = [
    "BuildLimits",
    "Checkpoint",
    "MemoryPlan",
    "Progress",
    "build_engine",
    "checkpoint_of_shape",
    "choose_limits",
    "least_tp_size",
    "open_checkpoint",
    "plan_memory",
]
