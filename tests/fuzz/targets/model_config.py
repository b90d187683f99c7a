"""config.json and generation_config.json of a Hugging Face directory, through the whole of convert."""

import json
import random
from pathlib import Path

from tests.fuzz.damage import damaged, damaged_text
from tests.fuzz.documents import mutated
from tests.fuzz.model_files import CONFIG, GENERATION, write_model
from trtllm_lite.convert import convert_checkpoint

COUNT = 80


class Target:
    """A model whose other files are valid."""

    def __init__(self, scratch: Path) -> None:
        del scratch

    def write(self, rng: random.Random, directory: Path) -> None:
        write_model(directory)
        name, document = rng.choice((("config.json", CONFIG), ("generation_config.json", GENERATION)))
        data = json.dumps(mutated(rng, document)).encode()
        if rng.random() < 0.2:
            data = rng.choice((damaged, damaged_text))(rng, data)
        (directory / name).write_bytes(data)

    def read(self, directory: Path) -> None:
        convert_checkpoint(str(directory), directory / "checkpoint")
