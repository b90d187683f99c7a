"""The numpy descriptions of the kernels with a recurrent state do what the operators' references do."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.gpu.device import Argument
from tests.gpu.state_checks import StateKernel, check_gated_rms_norm, check_grouped_rms_norm, check_state_steps
from tests.state_batch import Operator, Sequences, causal_conv, gated_delta_rule, in_wider_rows, mamba2
from tests.unit.builder import cuda_states  # noqa: F401 (registers kernels)
from tests.unit.builder.cuda_kernels import KERNELS, Macros, Pointer
from trtllm_lite.errors import BuildError

OPERATORS = [
    causal_conv(40, 4, dtype=np.float16),
    gated_delta_rule(3, 6, 24, 40),
    gated_delta_rule(3, 6, 24, 40, by_channel=True),
    mamba2(6, 2, 24, 40),
    in_wider_rows(causal_conv(40, 4, dtype=np.float16)),
    in_wider_rows(gated_delta_rule(3, 6, 24, 40, by_channel=True)),
    in_wider_rows(mamba2(6, 2, 24, 40)),
]
STEPS = [[(0, 7), (1, 40), (2, 1)], [(0, 1), (2, 1), (1, 0)], [(2, 50), (1, 2), (0, 5)], [(2, 18)]]


class _Described:
    """A kernel that numpy computes over the memory of tensors."""

    def __init__(self, name: str, macros: Macros) -> None:
        self.name, self.macros = name, macros

    def __call__(
        self,
        *arguments: Argument,
        grid: tuple[int, int, int],
        programmatic: bool = False,  # noqa: ARG002 (launches never overlap)
        memory: Sequence[torch.Tensor] = (),  # noqa: ARG002 (numpy knows)
    ) -> None:
        KERNELS[self.name](self.macros, grid, *map(_pointer, arguments))


class _Numpy:
    """A :class:`tests.gpu.device.Machine` whose kernels are numpy's."""

    device, arch, num_sms = "cpu", "sm_90a", 3

    def kernel(self, _source: str, name: str, _threads: int, _shared_bytes: int, defines: Macros) -> _Described:
        return _Described(name, defines)


def _pointer(argument: Argument) -> Argument | Pointer:
    if isinstance(argument, torch.Tensor):
        return argument.view(torch.uint8).flatten().numpy()
    return argument


@pytest.mark.parametrize("operator", OPERATORS)
def test_recurrent_states(operator: Operator) -> None:
    check_state_steps(operator, [13, 42, 70], STEPS, torch.float16, _Numpy())


def test_pairs_of_channels_begin_at_an_even_column() -> None:
    operator = causal_conv(40, 4, dtype=np.float16)
    inputs = Sequences(operator, [3]).inputs([(0, 3)])
    with pytest.raises(BuildError, match="its x begins at column 3, expected an even number: build for --target cpu"):
        StateKernel(operator, torch.float16, _Numpy())(inputs, {**operator.attributes, "x_first": 3})


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_gated_rms_norm(activation: str) -> None:
    check_gated_rms_norm(5, 3, 40, torch.bfloat16, _Numpy(), activation)


@pytest.mark.parametrize("order", ["gate_first", "gate_last"])
def test_grouped_rms_norm(order: str) -> None:
    check_grouped_rms_norm(5, 3, 40, order, torch.bfloat16, _Numpy(), 32)
