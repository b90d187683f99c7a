"""The GPU architectures that ``--target`` may name, and the shared memory that a block may use there."""

import re
from collections.abc import Sequence

from trtllm_lite.errors import BuildError, shown
from trtllm_lite.plugins.launch import Device

_KIB = 1024
# Largest dynamic shared memory of a block, by compute capability (CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability"): what an SM has for a block, less the 1 KB that the system keeps.
_SHARED_BYTES = {
    "80": 163 * _KIB,
    "86": 99 * _KIB,
    "87": 163 * _KIB,
    "89": 99 * _KIB,
    "90": 227 * _KIB,
    "100": 227 * _KIB,
    "103": 227 * _KIB,
    "120": 99 * _KIB,
    "121": 99 * _KIB,
}
# Bytes per second that the fastest card of a compute capability reads, by NVIDIA's data sheets: A100 80 GB, RTX 3090,
# Jetson AGX Orin, RTX 4090, H200, B200, B300, RTX 5090, DGX Spark.
_BANDWIDTH = {
    "80": 2.04e12,
    "86": 0.94e12,
    "87": 0.2e12,
    "89": 1.01e12,
    "90": 4.8e12,
    "100": 8e12,
    "103": 8e12,
    "120": 1.79e12,
    "121": 0.27e12,
}


def memory_bandwidth(arch: str) -> float:
    """Bytes per second that the fastest card of an architecture such as ``sm_90a`` reads from its memory."""
    return _BANDWIDTH[arch.removeprefix("sm_").removesuffix("a")]


def is_known(arch: str) -> bool:
    """Whether engines can be built for the architecture ``arch``, such as ``sm_90``."""
    return arch.removeprefix("sm_") in _SHARED_BYTES


def parse_targets(targets: Sequence[str]) -> tuple[Device, ...]:
    """The devices of names like ``sm_90``, in order, without repetitions.

    From compute capability 9 on, code is compiled for the chip itself (``sm_90a``), with its own instructions.
    Raises BuildError.
    """
    devices = [_device(name) for name in targets]
    return tuple(dict.fromkeys(devices))


def _device(name: str) -> Device:
    match = re.fullmatch(r"sm_(\d+)a?", name)
    if match is None or match[1] not in _SHARED_BYTES:
        known = ", ".join(f"sm_{capability}" for capability in _SHARED_BYTES)
        raise BuildError(
            f"the target is {shown(name)}: expected cpu, or one or several of {known}, separated by commas "
            "(an H100 or H200 is sm_90, an A100 sm_80)"
        )
    own_instructions = "a" if int(match[1]) >= 90 else ""
    return Device(f"sm_{match[1]}{own_instructions}", _SHARED_BYTES[match[1]])
