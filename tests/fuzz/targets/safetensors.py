"""A safetensors file: its header changed, or its bytes damaged. Whatever it then holds is read."""

import json
import random
import struct
from pathlib import Path

import numpy as np

from tests.fuzz.damage import damaged, damaged_text
from tests.fuzz.documents import mutate
from tests.fuzz.model_files import write_model
from trtllm_lite.convert.sources.safetensors_file import SafetensorsFile

COUNT = 400


class Target:
    """A file of the tiny Llama's tensors."""

    def __init__(self, scratch: Path) -> None:
        write_model(scratch)
        data = (scratch / "model.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        self._header, self._data = json.loads(data[8 : 8 + length]), data[8 + length :]

    def write(self, rng: random.Random, directory: Path) -> None:
        header = json.loads(json.dumps(self._header))
        if rng.random() < 0.7:
            mutate(rng, header)
        text = json.dumps(header).encode()
        if rng.random() < 0.2:
            text = damaged_text(rng, text)
        content = struct.pack("<Q", len(text)) + text + self._data
        if rng.random() < 0.2:
            content = damaged(rng, content)
        (directory / "model.safetensors").write_bytes(content)

    def read(self, directory: Path) -> None:
        file = SafetensorsFile(directory / "model.safetensors")
        for name in file.tensors:
            np.asarray(file.read(name)).sum(dtype=np.float32)
