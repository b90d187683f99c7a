"""The processor of LLaVA 1.5, for checkpoints that do not name CLIP's."""

from dataclasses import replace

from trtllm_lite.runtime.media.processors import clip
from trtllm_lite.runtime.media.processors.settings import CLIP_MEAN, Checkpoint


def read(checkpoint: Checkpoint) -> clip.ClipProcessor:
    """CLIP's processor, with squares for images where the checkpoint asks for margins. Raises EngineError."""
    processor = clip.read(checkpoint)
    if not checkpoint.settings.flag("do_pad", False):
        return processor
    return replace(processor, margin=checkpoint.settings.mean_colour(CLIP_MEAN))
