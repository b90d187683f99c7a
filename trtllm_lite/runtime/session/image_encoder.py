"""Defines ImageEncoder: makes rows that take the place of tokens of the patches of images, by a vision tower."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.vocabulary import IMAGE_PROCESSOR_FILE, VISION_TOWER
from trtllm_lite.engine.format import ENGINE_FILE
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import EngineError, LimitError, shown
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.media.order import block_order
from trtllm_lite.runtime.media.processors.processor import Grid, ImageProcessor, Patches
from trtllm_lite.runtime.media.processors.read import read_processor_file
from trtllm_lite.runtime.media.processors.settings import read_json
from trtllm_lite.runtime.session.device import available_memory, make_executor, open_gpus
from trtllm_lite.runtime.session.embedder import EmbedderLimits, encoder_loop
from trtllm_lite.runtime.session.embedding_handle import EmbeddingHandle
from trtllm_lite.runtime.session.embedding_pump import EmbeddingPump
from trtllm_lite.runtime.session.engine_dir import open_ranks
from trtllm_lite.runtime.session.limits import RunnerOptions
from trtllm_lite.runtime.session.loaded_model import LoadedModel
from trtllm_lite.runtime.session.stats import LatencyLog, Stats, make_stats


@dataclass(eq=False)
class ImageEncoder(LoadedModel):
    """Takes images for a vision tower, from any thread, and encodes them together.

    ``pump`` delivers what a ``_core.EncoderLoop`` does; each tile of an image is an item of its own, computed whole,
    with ``class_tokens`` before its patches.
    """

    limits: EmbedderLimits
    pump: EmbeddingPump
    processor: ImageProcessor
    class_tokens: int = 0

    @property
    def closing(self) -> tuple[Callable[[], None], ...]:
        """Implements :attr:`LoadedModel.closing`."""
        return (self.pump.close,)

    @property
    def is_broken(self) -> bool:
        """Whether nothing can be encoded any more until the engine is loaded again."""
        return self.pump.failure is not None or self.pump.loop.device_failed

    def stats(self) -> Stats:
        """Counts and times of what the encoder has done so far."""
        return make_stats(self.pump.loop.stats(), LatencyLog())

    @property
    def size(self) -> int:
        """The number of elements of a row."""
        return self.manifest.module.outputs[0].size

    def encode(self, images: Sequence[Patches]) -> list[NDArray[np.float32]]:
        """The rows of each image, float32[num_tokens, size]: those of a tile without those of class tokens.

        Raises the errors of :meth:`submit`, and of ``EmbeddingHandle.result``.
        """
        rows, encoded = self.submit(images).result(), []
        for image in images:
            kept = image.num_tokens // len(image.grids)
            tiles = []
            for grid in image.grids:
                count = self._num_rows(grid.rows * grid.columns)
                tiles.append(rows[count - kept : count])
                rows = rows[count:]
            encoded.append(np.concatenate(tiles))
        return encoded

    def _num_rows(self, num_patches: int) -> int:
        """The rows of a tile of so many patches, with those of class tokens."""
        return (num_patches + self.class_tokens) // self.manifest.module.tokens_per_row

    def submit(self, images: Sequence[Patches], *, priority: int = 0, timeout: float | None = None) -> EmbeddingHandle:
        """Queue images; returns at once.

        The handle's result is float32[rows, size]: the rows of all images in turn, before those of each tile the rows
        of its class tokens.

        Raises LimitError for an image of which a tile has more patches than a step, OverloadedError if too many images
        are outstanding, EngineError if the encoder is broken.
        """
        first = self.class_tokens
        block = math.isqrt(self.manifest.module.tokens_per_row)
        width = self.manifest.module.inputs[0].size
        tiles = [_padded(tile, width) for image in images for tile in _tiles(image, block)]
        for tile in tiles:
            self._check_length(first + len(tile))
        counts = np.array([self._num_rows(len(tile)) for tile in tiles], np.int64)
        handle = EmbeddingHandle(counts, timeout, self.cancel, None, "image")
        make, no_digest = core().PromptRows, bytes(16)
        places = [np.arange(first, first + len(tile), dtype=np.int32) for tile in tiles]
        rows = [make(place, tile, no_digest * len(tile)) for place, tile in zip(places, tiles, strict=True)]
        tokens = [np.zeros(first + len(tile), np.int32) for tile in tiles]
        self.pump.submit(handle, tokens, self.pump.new_flow(), priority, timeout, rows)
        return handle

    def _check_length(self, length: int) -> None:
        longest = self.limits.longest
        if length > longest:
            raise LimitError(
                f"an image has {length} patches in a tile, which exceeds the {longest} of a step of the vision tower: "
                "scale it down, or build the engine with a larger --max_image_patches"
            )


def _tiles(image: Patches, block: int) -> list[NDArray[np.uint8]]:
    """The patches of each tile, in the order of the tower."""
    ends = np.cumsum([grid.rows * grid.columns for grid in image.grids])
    parts = np.split(image.rows, ends[:-1])
    return [_in_blocks(part, grid, block) for part, grid in zip(parts, image.grids, strict=True)]


def _padded(rows: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Patches with zeros behind their bytes, which the tower's weights do not count."""
    return rows if rows.shape[1] == width else np.pad(rows, ((0, 0), (0, width - rows.shape[1])))


def _in_blocks(rows: NDArray[np.uint8], grid: Grid, block: int) -> NDArray[np.uint8]:
    return np.ascontiguousarray(rows if block == 1 else rows[block_order(grid, block)])


def open_image_encoder(native: Any, engine_dir: Path, options: RunnerOptions) -> ImageEncoder | None:
    """Load the vision tower in the directory ``vision_tower`` of a decoder's engine directory; None if there is none.

    Raises EngineError, LimitError, DeviceError as :func:`open_model` does.
    """
    directory = engine_dir / VISION_TOWER
    if not (directory / ENGINE_FILE).is_file():
        return None
    ranks = open_ranks(native, directory)
    manifest = Manifest.from_json(ranks[0].manifest)
    if manifest.module.kind != VISION_TOWER:
        found = manifest.module.kind.replace("_", " ")
        raise EngineError(f"{directory} is the engine of a {found}, expected that of a vision tower: build it again")
    gpus = open_gpus(native, manifest.target, 1, options.device_ids)
    if manifest.target.kind != "cpu":
        available_memory(gpus, manifest)  # raises if the device has too little memory
    own = manifest.limits
    limits = EmbedderLimits(own.max_batch_size, min(own.max_input_len, own.max_seq_len), own.max_num_tokens)
    where: dict[str, Any] = {"num_threads": options.num_threads or 0, "device_ids": options.device_ids}
    executor = make_executor(native, ranks, manifest, **where, num_blocks=0)
    pump = EmbeddingPump(encoder_loop(native, executor, limits), manifest.module.tokens_per_row)
    path = directory / IMAGE_PROCESSOR_FILE
    class_tokens = read_json(path).get("class_tokens")
    if class_tokens not in (0, 1) or isinstance(class_tokens, bool):
        raise EngineError(f"class_tokens of {path} is {shown(class_tokens)}, expected 0 or 1: build the engine again")
    return ImageEncoder(
        manifest=manifest,
        limits=limits,
        executor=executor,
        pump=pump,
        tokenizer=None,
        processor=read_processor_file(path),
        class_tokens=class_tokens,
    )
