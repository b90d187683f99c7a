"""An image and the settings of the processor that cuts it into patches: damaged bytes, or one of the two changed."""

import json
import random
from pathlib import Path

import numpy as np

from tests.fuzz.damage import damaged, damaged_text
from tests.fuzz.documents import mutated
from tests.rounds import all_run
from tests.unit.runtime.media.checkpoints import CHECKPOINTS
from tests.unit.runtime.media.odd_images import odd_image
from trtllm_lite.runtime.media.images import ImageLimits, read_image
from trtllm_lite.runtime.media.processors.read import read_processor

COUNT = 10_000 if all_run() else 800
_LIMITS = ImageLimits(max_image_pixels=1 << 20, max_image_bytes=1 << 22)


class Target:
    """Odd images of all formats, and all kinds of processors."""

    def __init__(self, scratch: Path) -> None:
        del scratch
        self._images = [odd_image(seed) for seed in range(200)]

    def write(self, rng: random.Random, directory: Path) -> None:
        settings, config = CHECKPOINTS[rng.choice(list(CHECKPOINTS))]
        content = rng.choice(self._images)
        for _ in range(rng.choice((0, 1, 1, 3))):
            content = damaged(rng, content or b"\0")
        if rng.random() < 0.3:
            settings, config = (mutated(rng, document) for document in (settings, config))
        text = json.dumps(settings).encode()
        (directory / "preprocessor_config.json").write_bytes(damaged_text(rng, text) if rng.random() < 0.05 else text)
        (directory / "config.json").write_text(json.dumps(config))
        (directory / "image").write_bytes(content)

    def read(self, directory: Path) -> None:
        processor = read_processor(directory)
        patches = processor.patches(read_image(directory / "image", _LIMITS))
        assert patches.rows.dtype == np.uint8
        assert patches.rows.shape == (sum(a * b for a, b in patches.grids), 3 * processor.patch_size**2)
