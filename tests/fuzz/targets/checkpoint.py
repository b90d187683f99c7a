"""config.json and network.onnx of a checkpoint: inspected, and built into an engine if they are valid."""

import json
import random
import shutil
from pathlib import Path

import onnx

from tests.fuzz.damage import damaged
from tests.fuzz.documents import mutated
from tests.fuzz.messages import mutate
from tests.fuzz.model_files import write_model
from trtllm_lite.builder import build_engine
from trtllm_lite.builder.inspect import inspect_checkpoint
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.network.verifier import load_network

COUNT = 80
_LIMITS = {"max_batch_size": 2, "max_input_len": 16, "max_seq_len": 48, "tokens_per_block": 16}


class Target:
    """A converted Llama of two layers."""

    def __init__(self, scratch: Path) -> None:
        self._checkpoint = scratch / "checkpoint"
        (scratch / "model").mkdir()
        write_model(scratch / "model")
        convert_checkpoint(str(scratch / "model"), self._checkpoint)
        self._config = json.loads((self._checkpoint / "config.json").read_text())
        self._network = onnx.load(self._checkpoint / "network.onnx", load_external_data=False)

    def write(self, rng: random.Random, directory: Path) -> None:
        shutil.copytree(self._checkpoint, directory, dirs_exist_ok=True)
        if rng.random() < 0.3:
            (directory / "config.json").write_text(json.dumps(mutated(rng, self._config)))
            return
        network = onnx.ModelProto()
        network.CopyFrom(self._network)
        for _ in range(rng.choice((1, 1, 2))):
            mutate(rng, network)
        data = network.SerializeToString()
        (directory / "network.onnx").write_bytes(damaged(rng, data) if rng.random() < 0.2 else data)

    def read(self, directory: Path) -> None:
        load_network(directory)
        inspect_checkpoint(directory)
        build_engine(directory, directory / "engine", **_LIMITS)
