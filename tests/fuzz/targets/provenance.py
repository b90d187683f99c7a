"""The provenance beside an engine."""

import json
import random
from pathlib import Path

from tests.fuzz.damage import damaged, damaged_text
from tests.fuzz.documents import mutated
from trtllm_lite.engine.provenance import PROVENANCE_FILE, Material, read_provenance, write_provenance

COUNT = 400


class Target:
    """A statement about one file."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(exist_ok=True)
        (scratch / "rank0.engine").write_bytes(b"engine")
        materials = [Material("model.gguf", {"sha256": "0" * 64})]
        write_provenance(scratch, {"build": {"max_batch_size": 1}}, materials, {"numpy": "2"})
        self._statement = json.loads((scratch / PROVENANCE_FILE).read_text())

    def write(self, rng: random.Random, directory: Path) -> None:
        data = json.dumps(mutated(rng, self._statement)).encode()
        if rng.random() < 0.2:
            data = rng.choice((damaged, damaged_text))(rng, data)
        (directory / PROVENANCE_FILE).write_bytes(data)

    def read(self, directory: Path) -> None:
        found = read_provenance(directory)
        assert found.producer
        assert all(isinstance(text, str) for item in found.materials for text in item.digest.values())
