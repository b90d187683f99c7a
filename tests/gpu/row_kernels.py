"""Specialises and launches the row-wise kernels for which that takes more than one line."""

import ctypes
from collections import Counter
from dataclasses import replace

import numpy as np
import torch

from tests.gpu.device import GPU, Kernel, Machine
from tests.gpu.kernels import dtype_flag
from tests.gpu.sampling import Sampling
from trtllm_lite.plugins.cuda.activation import ACTIVATION_FLAGS
from trtllm_lite.plugins.sample.cuda import mask_words
from trtllm_lite.plugins.sample.records import EDIT, SLOT, record
from trtllm_lite.request_fields.draws import NUMBERS

_SAMPLING_POINTERS = ("sample_slots", "sample_counter", "sample_drafts", "sample_masks")
_BANNED, _STOP = 1 << 24, 1 << 25
_NOT_SEEN, _GREEDY = -1, -1
_DRAFT_ROW, _NO_DRAFT, _NO_MASK = -2, -1, -1
_PLAIN = Sampling(temperature=0.0)


class _SamplingInputs(ctypes.Structure):
    """``SamplingInputs`` of sample/cuda.cuh."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in _SAMPLING_POINTERS)


def _edits(row: Sampling) -> list[tuple[int, int, float, float]]:
    """Each token that the row edits, once: with its flags, how often it was generated, and its bias."""
    bias, counts = dict(row.logit_bias), Counter(row.generated)
    seen = {*row.prompt, *row.generated} if row.counts_tokens else set()
    flags: dict[int, int] = dict.fromkeys((*bias, *seen), 0)
    for tokens, flag in ((row.banned, _BANNED), (row.stops if row.min_tokens > 0 else (), _STOP)):
        for token in tokens:
            flags[token] = flags.get(token, 0) | flag
    return [
        (token | flag, counts[token] if token in seen else _NOT_SEEN, bias.get(token, 0.0), 0.0)
        for token, flag in flags.items()
    ]


def _record(row: Sampling) -> bytes:
    """A ``SamplingSlot`` of sample/slot.cuh and its edits."""
    edits, header = np.array(_edits(row), EDIT), np.zeros((), SLOT)
    for name in NUMBERS:
        header[name] = getattr(row, name)
    header["seed"] = (row.seed & 0xFFFFFFFF, row.seed >> 32)
    header["sequence_index"], header["num_edits"], header["min_tokens"] = row.sequence_index, len(edits), row.min_tokens
    header["num_logprobs"], header["counts_tokens"] = 0 if row.logprobs is None else 1 + row.logprobs, row.counts_tokens
    stops = row.stops[: len(header["stops"])]
    header["stops"][: len(stops)] = [~token for token in stops]
    return header.tobytes() + edits.tobytes()


class Sample:
    """Samples a token from each row of float32 logits [rows, vocab], with several blocks per row."""

    THREADS = 512
    SHARED_BYTES = 64 * 1024
    MAX_TOP = 20

    def __init__(
        self,
        vocab: int,
        rows: int,
        *,
        blocks: int = 8,
        cluster: int = 8,
        max_edits: int = 64,
        machine: Machine = GPU,
    ) -> None:
        self.blocks, self.max_edits, self.device = blocks, max_edits, machine.device
        defines: dict[str, int | str] = {"TL_VOCAB": vocab, "TL_SHARED_BYTES": self.SHARED_BYTES, "TL_CLUSTER": cluster}
        self.kernel = machine.kernel("sample/cuda.cuh", "sample", self.THREADS, self.SHARED_BYTES, defines)
        self.winners = torch.empty(rows * blocks, device=self.device, dtype=torch.int64)
        self.arrivals = torch.zeros(rows, device=self.device, dtype=torch.int32)
        self.masks = torch.zeros(0, mask_words(vocab), device=self.device, dtype=torch.int32)
        self.logprobs = torch.full((rows, 2 + 2 * self.MAX_TOP), -7, device=self.device, dtype=torch.int32)

    def inputs(self, slots: list[int], rows: list[Sampling]) -> dict[str, torch.Tensor]:
        """The step inputs of the rows, and the records of their slots, on the card."""
        records = np.zeros((max(slots) + 1, record(self.max_edits).itemsize), np.uint8)
        for slot, row in zip(slots, rows, strict=True):
            made = np.frombuffer(_record(row), np.uint8)
            if slot >= 0:
                records[slot, : len(made)] = made
        counters = [_GREEDY if replace(row, stops=()) == _PLAIN else row.token_index for row in rows]
        columns = {"sample_slots": slots, "sample_counter": counters, "sample_drafts": [_NO_DRAFT] * len(rows)}
        columns["sample_masks"] = [_NO_MASK] * len(rows)
        inputs = {name: torch.tensor(columns[name], dtype=torch.int32) for name in _SAMPLING_POINTERS}
        inputs["slots"] = torch.from_numpy(records)
        return {name: values.to(self.device) for name, values in inputs.items()}

    def __call__(
        self,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        last_tokens: torch.Tensor,
        inputs: dict[str, torch.Tensor],
        *,
        programmatic: bool = False,
    ) -> None:
        pointers = _SamplingInputs(*(inputs[name].data_ptr() for name in _SAMPLING_POINTERS))
        kept = (last_tokens, inputs["slots"], self.logprobs, self.masks)
        arguments = (tokens, logits, self.winners, self.arrivals, *kept, self.max_edits, pointers)
        self.kernel(*arguments, grid=(self.blocks, len(logits), 1), programmatic=programmatic)

    def allow(self, inputs: dict[str, torch.Tensor], allowed: list[torch.Tensor | None]) -> None:
        """Give each row of ``inputs`` a mask of the tokens [vocab] that may be drawn, or none.

        Masks lie in another order than rows, and bits beyond the vocabulary are set.
        """
        masked = [row for row, tokens in enumerate(allowed) if tokens is not None]
        masks = np.ones((len(masked), 32 * self.masks.shape[1]), bool)
        numbers = torch.full((len(allowed),), _NO_MASK, dtype=torch.int32)
        numbers[masked] = torch.randperm(len(masked), dtype=torch.int32)
        for row in masked:
            tokens = allowed[row]
            assert tokens is not None
            masks[numbers[row], : len(tokens)] = tokens.numpy()
        words = np.packbits(masks, axis=1, bitorder="little").view(np.int32)
        self.masks = torch.from_numpy(words).to(self.device)
        inputs["sample_masks"] = numbers.to(self.device)

    def inputs_with_drafts(
        self, slots: list[int], rows: list[Sampling], drafts: list[list[int]]
    ) -> dict[str, torch.Tensor]:
        """Like :meth:`inputs`, with one more row after a slot's own for each of its draft tokens."""
        inputs = self.inputs(slots, rows)
        counters = inputs["sample_counter"].tolist()
        columns: dict[str, list[int]] = {name: [] for name in _SAMPLING_POINTERS}
        for slot, counter, own in zip(slots, counters, drafts, strict=True):
            columns["sample_slots"] += [slot, *[_DRAFT_ROW] * len(own)]
            columns["sample_counter"] += [counter] * (1 + len(own))
            columns["sample_drafts"] += [*own, _NO_DRAFT]
            columns["sample_masks"] += [_NO_MASK] * (1 + len(own))
        return inputs | {name: torch.tensor(columns[name], dtype=torch.int32).to(self.device) for name in columns}


class GateMul:
    """y[t, i] = activation(x[t, i]) * x[t, out + i]."""

    THREADS = 256

    def __init__(self, out: int, dtype: torch.dtype = torch.bfloat16, activation: str = "silu") -> None:
        defines: dict[str, int | str] = {"TL_OUT": out, "TL_THREADS": self.THREADS, "TL_FP16": dtype_flag(dtype)}
        defines["TL_ACTIVATION"] = ACTIVATION_FLAGS[activation]
        self.kernel = Kernel("gated_linear/gate_mul.cuh", "gate_mul", self.THREADS, 0, defines)
        self.blocks_per_row = -(-out // (16 * self.THREADS))

    def __call__(self, y: torch.Tensor, x: torch.Tensor) -> None:
        self.kernel(y, x, grid=(len(x), self.blocks_per_row, 1))
