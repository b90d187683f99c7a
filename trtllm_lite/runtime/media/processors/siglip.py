"""The processor of SigLIP."""

from dataclasses import dataclass

from trtllm_lite.runtime.media.images import Pixels
from trtllm_lite.runtime.media.processors.processor import ImageProcessor, Tiles
from trtllm_lite.runtime.media.processors.resizing import resized
from trtllm_lite.runtime.media.processors.settings import BICUBIC, HALF, Checkpoint
from trtllm_lite.runtime.media.processors.tower_tokens import read_extra_tokens

_SIZE = ("height", "width")


@dataclass(frozen=True)
class SiglipProcessor(ImageProcessor):
    """Squeezes images into one tile of ``height`` × ``width``."""

    height: int
    width: int
    resample: int
    extra_tokens: int

    def tiles(self, image: Pixels) -> Tiles:
        tile = resized(image, self.height, self.width, self.resample)
        num_patches = (self.height // self.patch_size) * (self.width // self.patch_size)
        return Tiles([tile], num_patches + self.extra_tokens)


def read(checkpoint: Checkpoint) -> SiglipProcessor:
    """The processor of a checkpoint. Raises EngineError."""
    settings = checkpoint.settings
    settings.must_be("do_resize", True)
    size = settings.size("size", {"height": 224, "width": 224}, _SIZE)
    return SiglipProcessor(
        normalization=settings.normalization(HALF, HALF),
        patch_size=checkpoint.patch_size(size),
        height=size["height"],
        width=size["width"],
        resample=settings.resample(BICUBIC),
        extra_tokens=read_extra_tokens(checkpoint, class_tokens=0),
    )
