"""An adapter in PEFT's format: its settings or its header changed, or its bytes damaged."""

import json
import random
import struct
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from tests.fuzz.damage import damaged, damaged_text
from tests.fuzz.documents import mutate
from trtllm_lite.engine.manifest import ModuleRows
from trtllm_lite.runtime.lora.peft import CONFIG_FILE, WEIGHTS_FILE, Projections, read_adapter

COUNT = 400
_MODULE = "base_model.model.model.layers.0.self_attn.{}_proj.lora_{}.weight"
_SHAPES = {"q_proj": (6, 4), "v_proj": (6, 2)}
_ROWS = [ModuleRows(f"model.layers.0.self_attn.{name}", ((0, out, 1),), 1, 0) for name, (_, out) in _SHAPES.items()]
_PROJECTIONS = Projections(_ROWS, list(_SHAPES.values()), 8)
_SETTINGS = {
    **{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "use_dora": False, "use_rslora": True},
    **{"rank_pattern": {"v_proj": 3}, "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 1.5}},
}


class Target:
    """An adapter of two projections of one layer."""

    def __init__(self, scratch: Path) -> None:
        del scratch
        shapes = {("q", "A"): (2, 6), ("q", "B"): (4, 2), ("v", "A"): (3, 6), ("v", "B"): (2, 3)}
        data = save({_MODULE.format(*name): np.ones(shape, np.float32) for name, shape in shapes.items()})
        (length,) = struct.unpack("<Q", data[:8])
        self._header, self._data = json.loads(data[8 : 8 + length]), data[8 + length :]

    def write(self, rng: random.Random, directory: Path) -> None:
        header, settings = (json.loads(json.dumps(value)) for value in (self._header, _SETTINGS))
        if rng.random() < 0.7:
            mutate(rng, rng.choice((header, settings)))
        text, config = json.dumps(header).encode(), json.dumps(settings).encode()
        if rng.random() < 0.1:
            config = damaged_text(rng, config)
        content = struct.pack("<Q", len(text)) + text + self._data
        if rng.random() < 0.2:
            content = damaged(rng, content)
        (directory / CONFIG_FILE).write_bytes(config)
        (directory / WEIGHTS_FILE).write_bytes(content)

    def read(self, directory: Path) -> None:
        for pair in read_adapter(directory, _PROJECTIONS).pairs.values():
            assert pair.a.shape[0] == pair.b.shape[1] <= _PROJECTIONS.max_rank
