"""The text that replaces an image's placeholder is, with image tokens repeated, what transformers replaces it with."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor

from tests.unit.runtime.media.checkpoints import write_checkpoint
from tests.unit.runtime.media.odd_images import odd_image
from trtllm_lite.runtime.media.images import ImageLimits, read_image
from trtllm_lite.runtime.media.processors.processor import ImageProcessor, ImageText, Patches
from trtllm_lite.runtime.media.processors.read import read_processor


def expanded(text: ImageText, image_token: str) -> str:
    parts = text.text.split(image_token)
    runs = [image_token * repeats for repeats in text.repeats]
    assert len(parts) == len(runs) + 1
    return "".join(part + run for part, run in zip(parts, [*runs, ""], strict=True))


def bare(kind: type, **attributes: Any) -> Any:
    """A processor of transformers without a tokenizer."""
    made = object.__new__(kind)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def qwen(kind: type, processor: ImageProcessor, patches: Patches) -> str:
    merging = SimpleNamespace(merge_size=processor.merge_size)
    own = bare(kind, image_token="<|image_pad|>", image_processor=merging)
    return own.replace_image_token({"image_grid_thw": np.array([[1, *patches.grids[0]]])}, 0)


def gemma3(processor: ImageProcessor, patches: Patches) -> str:
    sequence = "\n\n<start_of_image>" + "<image_soft_token>" * processor.tokens_per_tile + "<end_of_image>\n\n"
    own = bare(Gemma3Processor, full_image_sequence=sequence)
    return own.replace_image_token({"num_crops": [len(patches.grids) - 1]}, 0)


def pixtral(processor: ImageProcessor, patches: Patches) -> str:
    """As in processing_pixtral.py, which is not imported without torchvision."""
    rows, columns = (side // processor.merge_size for side in patches.grids[0])
    tokens = ([*["[IMG]"] * columns, "[IMG_BREAK]"]) * rows
    tokens[-1] = "[IMG_END]"
    return "".join(tokens)


def internvl(processor: ImageProcessor, patches: Patches) -> str:
    tokens = {"image_token": "<IMG_CONTEXT>", "start_image_token": "<img>", "end_image_token": "</img>"}
    own = bare(InternVLProcessor, image_seq_length=processor.tokens_per_tile, **tokens)
    return own.replace_image_token({"num_patches": [len(patches.grids)]}, 0)


def smolvlm(processor: ImageProcessor, patches: Patches) -> str:
    tokens = {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}
    own = bare(SmolVLMProcessor, image_seq_len=processor.tokens_per_tile, global_image_token="<global-img>", **tokens)
    return own.replace_image_token({"rows": [[patches.parts.rows]], "cols": [[patches.parts.columns]]}, 0)


def idefics3(processor: ImageProcessor, patches: Patches) -> str:
    tokens = {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}
    own = bare(Idefics3Processor, image_seq_len=processor.tokens_per_tile, global_image_tag="<global-img>", **tokens)
    return own.replace_image_token({"rows": [[patches.parts.rows]], "cols": [[patches.parts.columns]]}, 0)


def llava(processor: ImageProcessor, patches: Patches) -> str:
    own = bare(LlavaProcessor, image_token="<image>", patch_size=processor.patch_size, num_additional_image_tokens=1)
    own.vision_feature_select_strategy = "default"
    (rows, columns), side = patches.grids[0], processor.patch_size
    return own.replace_image_token({"pixel_values": [np.zeros((3, rows * side, columns * side))]}, 0)


MAKERS = {
    **{"qwen2-vl": partial(qwen, Qwen2VLProcessor), "qwen3-vl": partial(qwen, Qwen3VLProcessor)},
    **{"gemma3": gemma3, "gemma3-cut": gemma3, "pixtral": pixtral},
    **{"mistral3": pixtral, "internvl": internvl, "smolvlm": smolvlm, "idefics3": idefics3, "clip": llava},
}


@pytest.mark.parametrize(("name", "make"), MAKERS.items())
def test_texts_are_as_in_transformers(
    name: str, make: Callable[[ImageProcessor, Patches], str], tmp_path: Path
) -> None:
    processor = read_processor(write_checkpoint(tmp_path, name))
    for seed in range(12):
        patches = processor.patches(read_image(odd_image(seed), ImageLimits()))
        text = processor.text(patches)
        assert expanded(text, processor.image_token) == make(processor, patches)
        assert sum(text.repeats) == patches.num_tokens


@pytest.mark.parametrize("name", ["llavanext", "llava-onevision", "llava1.5"])
def test_other_texts_are_image_tokens_alone(name: str, tmp_path: Path) -> None:
    """Their number is compared with transformers in test_processors.py."""
    processor = read_processor(write_checkpoint(tmp_path, name))
    patches = processor.patches(read_image(odd_image(1), ImageLimits()))
    assert processor.text(patches) == ("<image>", (patches.num_tokens,))
