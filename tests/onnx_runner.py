"""Runs a checkpoint's network.onnx on onnxruntime, step by step, with right-padded batches and a poisoned cache.

States of recurrent layers begin with zeros.
"""

from collections.abc import Sequence
from copy import copy
from pathlib import Path

import numpy as np
import onnxruntime

from trtllm_lite.network.config import ModelConfig

_POISON = 1e3  # fills unused cache slots: attention to one changes a result visibly


class OnnxRunner:
    """A batch of sequences with what layers keep of them; every step appends any number of tokens (>= 1) to each.

    In networks with recurrent layers, a step appends equally many to all.
    """

    def __init__(self, checkpoint_dir: Path, batch: int, max_seq: int) -> None:
        config = ModelConfig.from_dir(checkpoint_dir)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        # onnxruntime multiplies dequantized matrices in float32, as the network says, and not in int8.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        path = str(checkpoint_dir / "network.onnx")
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._vocab = config.vocab_size
        inputs = {value.name: value.shape for value in self._session.get_inputs()}
        past = {name.removeprefix("past_"): shape for name, shape in inputs.items() if name.startswith("past_")}
        del past["lens"]
        self._names, extents = list(past), {"batch": batch, "max_seq": max_seq}
        forms = [[extents.get(extent, extent) for extent in shape] for shape in past.values()]
        fills = [_POISON if "max_seq" in shape else 0 for shape in past.values()]
        self._caches = [np.full(form, fill, np.float32) for form, fill in zip(forms, fills, strict=True)]
        self._past = np.zeros(batch, np.int64)

    def joined(self, other: "OnnxRunner") -> "OnnxRunner":
        """The batch of this batch's sequences and then those of ``other``, which is of the same network."""
        both = copy(self)
        pairs = zip(self._caches, other._caches, strict=True)
        both._caches, both._past = [np.concatenate(pair) for pair in pairs], np.concatenate([self._past, other._past])
        return both

    def step(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Append ``rows[b]`` to sequence b; returns the logits [len(rows[b]), vocab] of each."""
        width = max(len(row) for row in rows)
        # The pad token is a real token that the row does not have, so that attending to it changes the result.
        ids = np.full((len(rows), width), self._vocab - 1, np.int64)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row
        feed = {f"past_{name}": cache for name, cache in zip(self._names, self._caches, strict=True)}
        feed |= {"input_ids": ids, "past_lens": self._past, "position_ids": self._past[:, None] + np.arange(width)}
        outputs = ["logits", *(f"present_{name}" for name in self._names)]
        logits, *self._caches = self._session.run(outputs, feed)
        self._past = self._past + [len(row) for row in rows]
        return [logits[index, : len(row)] for index, row in enumerate(rows)]
