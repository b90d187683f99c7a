"""Runs kernels of ``plugins/`` on the CPU, on torch's CPU tensors, as ``tests/gpu/device.py`` runs them on a GPU."""

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tests.emulated.compiler import EmulationError, compile_kernel, machine_library
from tests.gpu.device import PLUGINS, Argument, argument_value, check_map

_MESSAGE_BYTES = 8192


class _Index(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class _Range(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("bytes", ctypes.c_uint64))


class _Launch(ctypes.Structure):
    """``Launch`` of machine.h."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("ranges", ctypes.POINTER(_Range)),
        ("grid", _Index),
        ("block", _Index),
        ("shared_bytes", ctypes.c_uint),
        ("cluster", ctypes.c_uint),
        ("resident_blocks", ctypes.c_uint),
        ("num_ranges", ctypes.c_uint),
        ("stream", ctypes.c_uint),
    )


@dataclass(frozen=True)
class EmulatedLaunch:
    """A launch of a kernel, with the memory that its ``structure`` points to."""

    name: str
    structure: _Launch
    kept: tuple[object, ...]


class Emulator:
    """A :class:`tests.gpu.device.Machine` that runs ``num_sms`` blocks at the same time, one for each SM."""

    device = "cpu"

    def __init__(self, arch: str = "sm_90a", num_sms: int = 3, seed: int = 0) -> None:
        self.arch, self.num_sms = arch, num_sms
        self._seeds: Iterator[int] = itertools.count(seed)

    def kernel(
        self, source: str, name: str, threads: int, shared_bytes: int, defines: dict[str, int | str]
    ) -> "EmulatedKernel":
        return EmulatedKernel(self, source, name, threads, shared_bytes, defines)

    def tensor_map(self, tensor: torch.Tensor, rows: int, columns: int, box: tuple[int, int]) -> ctypes.Structure:
        check_map(tensor, rows, columns)
        assert box[1] * tensor.itemsize == 128
        return _Matrix(tensor.data_ptr(), rows, columns, tensor.itemsize, box[0])

    def launch(self, launch: EmulatedLaunch) -> None:
        """Run the launch to its end."""
        self.run([[launch]])

    def run(self, streams: Sequence[Sequence[EmulatedLaunch]]) -> None:
        """Run streams side by side, the launches of each in order; every run has a new seed, which errors name."""
        launches = []
        for number, stream in enumerate(streams):
            for launch in stream:
                launch.structure.stream = number
                launches.append(launch)
        structures = (_Launch * len(launches))(*(launch.structure for launch in launches))
        seed, message = next(self._seeds), ctypes.create_string_buffer(_MESSAGE_BYTES)
        run = machine_library().emulated_run
        run.restype = ctypes.c_bool
        if not run(structures, len(launches), ctypes.c_uint64(seed), message, _MESSAGE_BYTES):
            names = ", ".join(dict.fromkeys(launch.name for launch in launches))
            raise EmulationError(f"{names} (seed {seed}): {message.value.decode()}")


class _Matrix(ctypes.Structure):
    """``Matrix`` of machine.h, padded to the size of the driver's tensor map."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_uint64),
        ("columns", ctypes.c_uint64),
        ("item_bytes", ctypes.c_uint),
        ("box_rows", ctypes.c_uint),
        ("unused", ctypes.c_char * 96),
    )


class EmulatedKernel:
    """The emulator's :class:`tests.gpu.device.Kernel`."""

    def __init__(
        self, machine: Emulator, source: str, name: str, threads: int, shared_bytes: int, defines: dict[str, int | str]
    ) -> None:
        self.machine, self.name, self.threads, self.shared_bytes = machine, name, threads, shared_bytes
        number = int(machine.arch.removeprefix("sm_").removesuffix("a")) * 10
        macros = sorted((defines | {"__CUDA_ARCH__": number}).items())
        library = compile_kernel(PLUGINS / source, name, tuple(f"-D{key}={value}" for key, value in macros))
        self._cluster: int = library.emulated_cluster()
        self._function = ctypes.cast(library.emulated_kernel, ctypes.c_void_p)

    def __call__(
        self,
        *arguments: Argument,
        grid: int | tuple[int, int, int],
        programmatic: bool = False,  # noqa: ARG002 (launches never overlap)
        memory: Sequence[torch.Tensor] = (),
    ) -> None:
        values = [argument_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        tensors = [*memory, *(argument for argument in arguments if isinstance(argument, torch.Tensor))]
        ranges = (_Range * len(tensors))(*(_Range(tensor.data_ptr(), tensor.nbytes) for tensor in tensors))
        structure = _Launch(
            kernel=self._function,
            arguments=pointers,
            ranges=ranges,
            grid=_Index(*((grid, 1, 1) if isinstance(grid, int) else grid)),
            block=_Index(self.threads, 1, 1),
            shared_bytes=self.shared_bytes,
            cluster=self._cluster,
            resident_blocks=max(self.machine.num_sms, self._cluster),
            num_ranges=len(ranges),
        )
        self.machine.launch(EmulatedLaunch(self.name, structure, (values, tensors)))
