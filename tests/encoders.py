"""Encoders for tests: the files in which sentence-transformers stores pooling, and its results as reference."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

_MODULES = "sentence_transformers.models"


def write_pooling(directory: Path, normalize: bool = True, **modes: Any) -> None:
    """Write modules.json and the pooling's config.json with the keys ``modes``, by default the mean over tokens."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": number, "name": str(number), "path": paths[number], "type": f"{_MODULES}.{kind}"}
        for number, kind in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    config = {"word_embedding_dimension": 60, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({**config, **modes}))


def expected_rows(
    model: PreTrainedModel, texts: Sequence[Sequence[int]], *, first: bool = False, normalize: bool = False
) -> np.ndarray:
    """The pooled embeddings that sentence-transformers computes from the last hidden states, one text at a time."""
    rows = []
    for text in texts:
        with torch.no_grad():
            hidden = model(torch.tensor([list(text)])).last_hidden_state[0]
        row = hidden[0] if first else hidden.mean(0)
        rows.append(torch.nn.functional.normalize(row, dim=0) if normalize else row)
    return torch.stack(rows).numpy()
