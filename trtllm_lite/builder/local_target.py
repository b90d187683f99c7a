"""Finds the target of this machine: its NVIDIA GPUs if engines can be built for them, or else its CPU."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from trtllm_lite import _core
from trtllm_lite.builder.cuda.targets import is_known
from trtllm_lite.common.files import library_directories
from trtllm_lite.common.vocabulary import CPU
from trtllm_lite.errors import BuildError, DeviceError


@dataclass(frozen=True)
class LocalTarget:
    """The build targets ``names`` of this machine, and a description ``found`` of its devices, if they were looked for.

    ``device_memory`` is the memory of the smallest GPU in bytes; None if the target is the CPU.
    """

    names: tuple[str, ...]
    found: str = ""
    device_memory: int | None = None

    def __str__(self) -> str:
        found = f" ({self.found})" if self.found else ""
        return f"the target is {', '.join(self.names)}{found}"


def local_target() -> LocalTarget:
    """Find the targets of engines for this machine by asking libcuda.

    Raises DeviceError if the driver fails, BuildError if there are GPUs, but packages that compile or run engines for
    them are missing.
    """
    try:
        devices = _core.cuda_devices()
    except DeviceError as error:
        raise DeviceError(f"{error}; to use the CPU pass --target {CPU}") from error
    usable = [device for device in devices if is_known(device["arch"])]
    if not usable:
        found = f"{_names(devices)}, for which there are no kernels" if devices else "no NVIDIA GPU was found"
        return LocalTarget((CPU,), found)
    _check_packages(_names(usable))
    archs = tuple(dict.fromkeys(device["arch"] for device in usable))
    return LocalTarget(archs, _names(usable), min(device["memory"] for device in usable))


def _names(devices: Sequence[dict[str, str]]) -> str:
    """The names of devices, such as ``2 x NVIDIA H200``."""
    counts = Counter(f"{device['name']} ({device['arch']})" for device in devices)
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())


def _check_packages(found: str) -> None:
    """Raise BuildError without the packages of the extra ``cuda``, or if other copies of their libraries are loaded."""
    missing = [package for package in ("cuda.bindings",) if not _is_installed(package)]
    try:
        _core.cublaslt_version(library_directories())
    except DeviceError:
        missing.append("cuBLAS")
    if missing:
        raise BuildError(
            f"this machine has {found}, but not what engines for it need ({' and '.join(missing)}): "
            f"pip install 'trtllm_lite[cuda]', or pass --target {CPU} to use the CPU"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing as well
        return False
