"""Chooses the device of this machine on which a stage runs the engines that it builds for itself."""

from typing import Literal, get_args

from trtllm_lite import _core
from trtllm_lite.errors import ArgumentError, DeviceError, shown

Device = Literal["cpu", "cuda"]
DEVICES: tuple[str, ...] = get_args(Device)


def check_device(device: str) -> None:
    """Raise ArgumentError unless ``device`` is the name of a device."""
    if device not in DEVICES:
        raise ArgumentError(f"device is {shown(device)}: expected {' or '.join(DEVICES)}")


def target_of(device: Device) -> str:
    """The target of engines for ``device``; the first GPU's for ``cuda``. Raises DeviceError if there is no GPU."""
    if device == "cpu":
        return device
    try:
        return str(_core.cuda_device()["arch"])
    except DeviceError as error:
        raise DeviceError(f"the device is to be cuda: {error}; or choose the device cpu") from error
