"""Runs what ``plugins/<op>/cuda.py`` says on tensors of torch: its macros, grid and arguments are what is tested."""

import ctypes
from collections.abc import Mapping

import torch

from tests.gpu.device import GPU, Machine, driver
from tests.gpu.device import Argument as Value
from trtllm_lite.plugins.launch import Argument, Buffer, Device, Extent, Launch, TensorMap

H200 = Device("sm_90a", 227 * 1024)
_DATA_TYPES = {1: 0, 2: 1}  # by bytes of an element: CU_TENSOR_MAP_DATA_TYPE_UINT8, UINT16
_SWIZZLE_128, _PROMOTE_256 = 3, 3  # of CUtensorMapSwizzle, CUtensorMapL2promotion


class _Map(ctypes.Structure):
    _fields_ = (("opaque", ctypes.c_uint64 * 16),)


def encode(tensor: torch.Tensor, wanted: TensorMap) -> _Map:
    """``wanted`` over the memory of ``tensor``, which must have that many elements."""
    assert isinstance(wanted.rows, int)
    assert tensor.numel() == wanted.rows * wanted.columns, (tensor.shape, wanted)
    assert tensor.is_contiguous()
    room = (ctypes.c_uint64 * 32)()  # the driver wants an address that is a multiple of 64
    at = (ctypes.addressof(room) + 63) // 64 * 64
    status = driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(at),
        _DATA_TYPES[tensor.itemsize],
        2,
        ctypes.c_void_p(tensor.data_ptr()),
        (ctypes.c_uint64 * 2)(wanted.columns, wanted.rows),
        (ctypes.c_uint64 * 1)(wanted.columns * tensor.itemsize),
        (ctypes.c_uint32 * 2)(wanted.box_columns, wanted.box_rows),
        (ctypes.c_uint32 * 2)(1, 1),
        0,
        _SWIZZLE_128,
        _PROMOTE_256,
        0,
    )
    assert status == 0, f"cuTensorMapEncodeTiled failed with {status} for {wanted}"
    return _Map.from_buffer_copy(ctypes.string_at(at, ctypes.sizeof(_Map)))


class Prepared:
    """``launch`` with ``tensors`` for its buffers and ``symbols`` for its extents."""

    def __init__(
        self,
        launch: Launch,
        tensors: Mapping[Buffer, torch.Tensor],
        symbols: Mapping[str, int],
        machine: Machine = GPU,
    ) -> None:
        specialised = launch.kernel
        defines: dict[str, int | str] = dict(specialised.defines)
        self._symbols = {"num_sms": machine.num_sms, **symbols}
        self.kernel = machine.kernel(
            specialised.source, specialised.name, specialised.threads, specialised.shared_bytes, defines
        )
        x, y, z = (self._extent(extent) for extent in launch.grid)
        self.grid = (x, y, z)
        self._arguments = [self._value(argument, tensors) for argument in launch.arguments]

    def __call__(self, *, programmatic: bool = False) -> None:
        """Launch on torch's current stream."""
        self.kernel(*self._arguments, grid=self.grid, programmatic=programmatic)

    def _extent(self, extent: Extent) -> int:
        terms = (-(-self._symbols[name] * multiplier // divisor) for name, multiplier, divisor in extent.terms)
        return extent.const + sum(terms)

    def _value(self, argument: Argument, tensors: Mapping[Buffer, torch.Tensor]) -> Value:
        if isinstance(argument, Extent):
            return self._extent(argument)
        if isinstance(argument, TensorMap):
            assert isinstance(argument.operand, Buffer)
            return encode(tensors[argument.operand], argument)
        if isinstance(argument, Buffer):
            return tensors[argument]
        assert argument is None or isinstance(argument, int | float)
        return argument
