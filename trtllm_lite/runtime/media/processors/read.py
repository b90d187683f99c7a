"""Makes the image processor of a checkpoint."""

from collections.abc import Callable
from pathlib import Path

from trtllm_lite.errors import EngineError, shown
from trtllm_lite.runtime.media.processors import (
    clip,
    gemma3,
    got_ocr2,
    llava,
    llava_next,
    llava_onevision,
    pixtral,
    qwen2_vl,
    siglip,
    siglip2,
    smolvlm,
)
from trtllm_lite.runtime.media.processors.processor import ImageProcessor
from trtllm_lite.runtime.media.processors.settings import Checkpoint

_READERS: dict[str, Callable[[Checkpoint], ImageProcessor]] = {
    "CLIPImageProcessor": clip.read,
    "CLIPFeatureExtractor": clip.read,  # its name in older checkpoints
    "Gemma3ImageProcessor": gemma3.read,
    "GotOcr2ImageProcessor": got_ocr2.read,
    "Idefics3ImageProcessor": smolvlm.read,
    "LlavaImageProcessor": llava.read,
    "LlavaNextImageProcessor": llava_next.read,
    "LlavaOnevisionImageProcessor": llava_onevision.read,
    "PixtralImageProcessor": pixtral.read,
    "Qwen2VLImageProcessor": qwen2_vl.read,
    "Siglip2ImageProcessor": siglip2.read,
    "SiglipImageProcessor": siglip.read,
    "SmolVLMImageProcessor": smolvlm.read,
}
_ONLY_TORCHVISION = "Llama4ImageProcessor"
_BACK_ENDS = ("Fast", "Pil")  # back ends of transformers, which the name of a processor can end with


def read_processor(directory: Path) -> ImageProcessor:
    """The image processor of the checkpoint in ``directory``.

    Its settings are those of preprocessor_config.json or, in newer checkpoints, processor_config.json; config.json
    has the facts of the vision tower. Whatever back end they name, images are processed as by the PIL back end.

    Raises EngineError if a file is absent or damaged, the processor is of an unknown type, or a setting is unknown or
    has a value that is not supported.
    """
    return _read(Checkpoint.from_dir(directory), str(directory))


def read_processor_file(path: Path) -> ImageProcessor:
    """The image processor that the file beside an engine describes. Raises the errors of :func:`read_processor`."""
    return _read(Checkpoint.from_file(path), str(path))


def _read(checkpoint: Checkpoint, origin: str) -> ImageProcessor:
    name = checkpoint.type if isinstance(checkpoint.type, str) else ""
    for back_end in _BACK_ENDS:
        name = name.removesuffix(back_end)
    if name == _ONLY_TORCHVISION:
        raise EngineError(
            f"the image processor of {origin} is {name}, which transformers has for torchvision alone: expected "
            "one that it has for Pillow too, as images are processed without torch"
        )
    if name not in _READERS:
        raise EngineError(
            f"the image processor of {origin} is {shown(checkpoint.type)}: expected one of "
            f"{', '.join(sorted(_READERS))}"
        )
    processor = _READERS[name](checkpoint)
    checkpoint.settings.finish()
    return processor
