"""The manifest of an artifact that a registry sends."""

import json
import random
from pathlib import Path

from tests.fuzz.damage import damaged, damaged_text
from tests.fuzz.documents import mutated
from trtllm_lite.registry.artifact import ARTIFACT_TYPE, LAYER_TYPES, MANIFEST_TYPE, TITLE, read_artifact

COUNT = 400


class Target:
    """The manifest of an engine with all files that one may have."""

    def __init__(self, scratch: Path) -> None:
        del scratch
        layers = [
            {"mediaType": kind, "digest": f"sha256:{index:064x}", "size": 100, "annotations": {TITLE: name}}
            for index, (name, kind) in enumerate(LAYER_TYPES.items())
        ]
        kinds = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "artifactType": ARTIFACT_TYPE}
        self._manifest = {**kinds, "config": layers[0], "layers": layers, "annotations": {"a": "b"}}

    def write(self, rng: random.Random, directory: Path) -> None:
        data = json.dumps(mutated(rng, self._manifest)).encode()
        if rng.random() < 0.2:
            data = rng.choice((damaged, damaged_text))(rng, data)
        (directory / "manifest.json").write_bytes(data)

    def read(self, directory: Path) -> None:
        artifact = read_artifact((directory / "manifest.json").read_bytes(), "h.example/a:1")
        assert {layer.title for layer in artifact.layers} <= LAYER_TYPES.keys()
