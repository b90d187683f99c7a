"""How the kernels that touch each row once are specialised and launched, where that takes more than a line."""

import ctypes

import torch

from tests.gpu.device import Kernel
from tests.gpu.kernels import dtype_flag
from tests.gpu.sampling import Sampling

_SAMPLING_POINTERS = (
    ("sample_slots", torch.int32),
    ("temperature", torch.float32),
    ("top_k", torch.int32),
    ("top_p", torch.float32),
    ("min_p", torch.float32),
    ("seed_low", torch.int32),
    ("seed_high", torch.int32),
    ("sample_counter", torch.int32),
    ("sequence_index", torch.int32),
)


class _SamplingInputs(ctypes.Structure):
    """``SamplingInputs`` of sample/cuda.cuh."""

    _fields_ = tuple((name, ctypes.c_void_p) for name, _ in _SAMPLING_POINTERS)


def _signed(bits: int) -> int:
    return (bits & 0xFFFFFFFF) - (1 << 32 if bits & 0x80000000 else 0)


class Sample:
    """Draws a token for each row of float32 logits [rows, vocab], several blocks a row."""

    THREADS = 512
    SHARED_BYTES = 64 * 1024

    def __init__(self, vocab: int, rows: int, *, blocks: int = 8) -> None:
        self.blocks = blocks
        defines: dict[str, int | str] = {"TL_VOCAB": vocab, "TL_SHARED_BYTES": self.SHARED_BYTES}
        self.kernel = Kernel("sample/cuda.cuh", "sample", self.THREADS, self.SHARED_BYTES, defines)
        self.winners = torch.empty(rows * blocks, device="cuda", dtype=torch.int64)
        self.arrivals = torch.zeros(rows, device="cuda", dtype=torch.int32)

    def inputs(self, slots: list[int], rows: list[Sampling]) -> dict[str, torch.Tensor]:
        """The step inputs of the rows, on the card."""
        columns = {
            "sample_slots": slots,
            "temperature": [row.temperature for row in rows],
            "top_k": [row.top_k for row in rows],
            "top_p": [row.top_p for row in rows],
            "min_p": [row.min_p for row in rows],
            "seed_low": [_signed(row.seed) for row in rows],
            "seed_high": [_signed(row.seed >> 32) for row in rows],
            "sample_counter": [row.token_index for row in rows],
            "sequence_index": [row.sequence_index for row in rows],
        }
        return {name: torch.tensor(columns[name], device="cuda", dtype=dtype) for name, dtype in _SAMPLING_POINTERS}

    def __call__(
        self,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        last_tokens: torch.Tensor,
        inputs: dict[str, torch.Tensor],
        *,
        programmatic: bool = False,
    ) -> None:
        pointers = _SamplingInputs(*(inputs[name].data_ptr() for name, _ in _SAMPLING_POINTERS))
        arguments = (tokens, logits, self.winners, self.arrivals, last_tokens, pointers)
        self.kernel(*arguments, grid=(self.blocks, len(logits), 1), programmatic=programmatic)


class SiluMul:
    """y[t, i] = silu(x[t, i]) * x[t, out + i]."""

    THREADS = 256

    def __init__(self, out: int, dtype: torch.dtype = torch.bfloat16) -> None:
        defines: dict[str, int | str] = {"TL_OUT": out, "TL_THREADS": self.THREADS, "TL_FP16": dtype_flag(dtype)}
        self.kernel = Kernel("gated_linear/silu_mul.cuh", "silu_mul", self.THREADS, 0, defines)
        self.blocks_per_row = -(-out // (16 * self.THREADS))

    def __call__(self, y: torch.Tensor, x: torch.Tensor) -> None:
        self.kernel(y, x, grid=(len(x), self.blocks_per_row, 1))
