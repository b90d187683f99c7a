"""A timing cache: measurements from a GPU, as JSON."""

import json
import random
from pathlib import Path

from tests.fuzz.damage import damaged, damaged_text
from tests.fuzz.documents import mutated
from trtllm_lite.builder.cuda.products.timing_cache import load_timing_cache

COUNT = 400
_CACHE = Path(__file__).parents[3] / "configs/timing_caches/nvidia-h200.json"
_KEPT = 3  # number of entries kept of each list


class Target:
    """The start of the H200's timing cache."""

    def __init__(self, scratch: Path) -> None:
        del scratch
        cache = json.loads(_CACHE.read_text())
        self._cache = cache | {key: cache[key][:_KEPT] for key in ("products", "kernels")}

    def write(self, rng: random.Random, directory: Path) -> None:
        data = json.dumps(mutated(rng, self._cache)).encode()
        if rng.random() < 0.2:
            data = rng.choice((damaged, damaged_text))(rng, data)
        (directory / "cache.json").write_bytes(data)

    def read(self, directory: Path) -> None:
        cache = load_timing_cache(directory / "cache.json")
        for timing in cache.products:
            cache.algorithms(timing.product, cache.arch, 64)
        cache.merged(cache.products, cache.kernels).merged_with(cache).save(directory / "saved.json")
        load_timing_cache(directory / "saved.json")
