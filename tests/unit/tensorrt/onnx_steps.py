"""Runs the network that TensorRT gets on onnxruntime, in the steps of TensorRT's engines: context and generation."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime

from trtllm_lite.common.vocabulary import LOGITS_INDICES

_TYPES = {"tensor(float16)": np.float16, "tensor(float)": np.float32}
_POISON = 1e3  # fills cache slots that no step has written: attention to one changes a result visibly


class OnnxSteps:
    """A batch of sequences with their caches [batch, kv_heads, max_seq_len, head_dim]."""

    def __init__(self, model: ir.Model, directory: Path, batch: int) -> None:
        path = directory / "tensorrt.onnx"
        ir.save(model, path, external_data="tensorrt.data")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        pasts = [value for value in self._session.get_inputs() if value.name.startswith(("past_key.", "past_value."))]
        self._caches = {value.name: np.full((batch, *value.shape[1:]), _POISON, _TYPES[value.type]) for value in pasts}
        self._lengths = np.zeros(batch, np.int64)

    def context(self, row: int, tokens: Sequence[int]) -> np.ndarray:
        """Append ``tokens`` to one sequence; returns the logits [vocab] of the last one."""
        return self._run(slice(row, row + 1), np.array([tokens], np.int64))[0]

    def generation(self, tokens: Sequence[int]) -> np.ndarray:
        """Append a token to each sequence; returns the logits [batch, vocab]."""
        return self._run(slice(None), np.array(tokens, np.int64)[:, None])

    def _run(self, rows: slice, tokens: np.ndarray) -> np.ndarray:
        count, width = tokens.shape
        past = self._lengths[rows]
        feed = {name: cache[rows] for name, cache in self._caches.items()}
        feed |= {
            "input_ids": tokens,
            "past_lens": past,
            "position_ids": past[:, None] + np.arange(width),
            LOGITS_INDICES: np.arange(count) * width + width - 1,
        }
        outputs = [name.replace("past_", "present_") for name in self._caches]
        logits, *caches = self._session.run(["logits", *outputs], feed)
        for name, cache in zip(self._caches, caches, strict=True):
            self._caches[name][rows] = cache
        self._lengths[rows] += width
        return logits
