"""Runs the launches of ``plugins/<op>/cuda.py`` on tensors of torch, and so tests their macros, grid and arguments."""

from collections.abc import Mapping, Sequence

import torch

from tests.gpu.device import GPU, Machine
from tests.gpu.device import Argument as Value
from trtllm_lite.plugins.launch import Argument, Buffer, Device, Extent, Launch, Slice, TensorMap

H200 = Device("sm_90a", 227 * 1024)


class Prepared:
    """The ``launch``, with ``tensors`` for its buffers and ``symbols`` for its extents."""

    def __init__(
        self,
        launch: Launch,
        tensors: Mapping[Buffer, torch.Tensor],
        symbols: Mapping[str, int],
        machine: Machine = GPU,
        others: Sequence[torch.Tensor] = (),
    ) -> None:
        """Prepare the launch; ``others`` is memory of other ranks that kernels also access."""
        specialised, self._machine = launch.kernel, machine
        defines: dict[str, int | str] = dict(specialised.defines)
        self._symbols = {"num_sms": machine.num_sms, **symbols}
        self.kernel = machine.kernel(
            specialised.source, specialised.name, specialised.threads, specialised.shared_bytes, defines
        )
        x, y, z = (self._extent(extent) for extent in launch.grid)
        self.grid = (x, y, z)
        self._memory = [*tensors.values(), *others]
        self._arguments = [self._value(argument, tensors) for argument in launch.arguments]

    def __call__(self, *, programmatic: bool = False) -> None:
        """Launch on torch's current stream."""
        self.kernel(*self._arguments, grid=self.grid, programmatic=programmatic, memory=self._memory)

    def _extent(self, extent: Extent) -> int:
        terms = (-(-self._symbols[name] * multiplier // divisor) for name, multiplier, divisor in extent.terms)
        return extent.const + sum(terms)

    def _value(self, argument: Argument, tensors: Mapping[Buffer, torch.Tensor]) -> Value:
        if isinstance(argument, Extent):
            return self._extent(argument)
        if isinstance(argument, TensorMap):
            assert isinstance(argument.operand, Buffer)
            assert isinstance(argument.rows, int)
            box = (argument.box_rows, argument.box_columns)
            return self._machine.tensor_map(tensors[argument.operand], argument.rows, argument.columns, box)
        if isinstance(argument, Buffer):
            return tensors[argument]
        if isinstance(argument, Slice):
            return tensors[argument.buffer].flatten().view(torch.uint8)[self._extent(argument.offset) :]
        assert argument is None or isinstance(argument, int | float)
        return argument
