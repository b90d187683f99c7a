"""Patches are, bit for bit, what the PIL back ends of transformers make of the same images."""

import json
import math
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from transformers.image_processing_utils import select_best_resolution
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas
from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size as pixtral_extents
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.siglip2.image_processing_pil_siglip2 import get_image_size_for_max_num_patches
from transformers.models.smolvlm.image_processing_pil_smolvlm import get_resize_output_image_size

from tests.rounds import rounds
from tests.unit.runtime.media.checkpoints import CHECKPOINTS, write_checkpoint
from tests.unit.runtime.media.odd_images import odd_image
from tests.unit.runtime.media.references import Reference, reference, saved_settings
from tests.unit.runtime.media.test_images import encoded
from trtllm_lite.errors import ArgumentError, EngineError, LimitError
from trtllm_lite.runtime.media.images import ImageLimits, read_image
from trtllm_lite.runtime.media.processors.got_ocr2 import GotOcr2Processor
from trtllm_lite.runtime.media.processors.llava_onevision import LlavaOnevisionProcessor
from trtllm_lite.runtime.media.processors.pixtral import PixtralProcessor
from trtllm_lite.runtime.media.processors.processor import Grid, ImageProcessor, Patches
from trtllm_lite.runtime.media.processors.qwen2_vl import Qwen2VLProcessor
from trtllm_lite.runtime.media.processors.read import read_processor
from trtllm_lite.runtime.media.processors.siglip2 import Siglip2Processor
from trtllm_lite.runtime.media.processors.smolvlm import SmolVlmProcessor

LIMITS = ImageLimits()
_SIDES = st.one_of(st.integers(1, 300), st.integers(1, 20_000))


def normalized(processor: ImageProcessor, patches: Patches) -> np.ndarray:
    """The rows as they enter the model, rescaled and normalised in the arithmetic of transformers: float32."""
    constants = processor.normalization
    shape = (-1, 3) if processor.channels_last else (3, -1)
    spread = (1, 1, 3) if processor.channels_last else (1, 3, 1)
    mean, std = (np.array(values, np.float32).reshape(spread) for values in (constants.mean, constants.std))
    values = (patches.rows.astype(np.float64) * constants.scale).astype(np.float32)
    return ((values.reshape(len(values), *shape) - mean) / std).reshape(len(values), -1)


def assert_is_as_in_transformers(
    name: str, processor: ImageProcessor, content: bytes, which: str, changes: Mapping[str, Any] = MappingProxyType({})
) -> None:
    expected = reference(name, ImageOps.exif_transpose(Image.open(BytesIO(content))), changes)
    found = processor.patches(read_image(content, LIMITS))
    assert_same(processor, found, expected, which)


def assert_same(processor: ImageProcessor, found: Patches, expected: Reference, which: str) -> None:
    assert found.rows.dtype == np.uint8
    assert found.rows.flags.c_contiguous
    assert list(found.grids) == expected.grids, which
    assert found.num_tokens == expected.num_tokens, which
    assert found.parts == (found.parts if expected.parts is None else expected.parts), which
    np.testing.assert_array_equal(normalized(processor, found), expected.rows, err_msg=which)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_odd_images_are_as_in_transformers(name: str, tmp_path: Path) -> None:
    processor = read_processor(write_checkpoint(tmp_path, name))
    for seed in range(rounds(200)):
        assert_is_as_in_transformers(name, processor, odd_image(seed), f"seed {seed}")


def test_several_images_of_a_prompt_are_as_in_transformers(tmp_path: Path) -> None:
    """LLaVA-OneVision does not cut these."""
    name = "llava-onevision"
    processor = read_processor(write_checkpoint(tmp_path, name, image_mean=[0.48, 0.46, 0.4]))
    for seed in range(rounds(100)):
        content = odd_image(seed)
        image = ImageOps.exif_transpose(Image.open(BytesIO(content)))
        expected = reference(name, image, {"image_mean": [0.48, 0.46, 0.4]}, is_alone=False)
        found = processor.patches(read_image(content, LIMITS), is_alone=False)
        assert_same(processor, found, expected, f"seed {seed}")


@pytest.mark.parametrize("name", sorted(CHECKPOINTS.keys() - {"llava-onevision"}))
def test_other_processors_make_no_difference_of_several_images(name: str, tmp_path: Path) -> None:
    processor = read_processor(write_checkpoint(tmp_path, name))
    assert not processor.differs_among_others
    image = read_image(odd_image(3), LIMITS)
    np.testing.assert_array_equal(processor.patches(image, is_alone=False).rows, processor.patches(image).rows)


def qwen(**changes: int) -> Qwen2VLProcessor:
    fields = {"patch_size": 14, "frames_per_patch": 2, "merge_size": 2, "resample": 3, **changes}
    return Qwen2VLProcessor(normalization=None, **fields)


@given(_SIDES, _SIDES, st.sampled_from([14, 16]), st.integers(1, 1 << 18), st.floats(4, 1000))
@example(1, 200, 14, 3136, 320)
@example(42, 70, 14, 1, 1 << 20)  # halves, which are rounded to even numbers
def test_qwen_keeps_area_and_aspect_ratio(height: int, width: int, patch_size: int, least: int, times: float) -> None:
    most, step = int(least * times), 2 * patch_size
    processor = qwen(patch_size=patch_size, min_pixels=least, max_pixels=most)
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(ArgumentError, match="200 times"):
            processor.resized_extents(height, width)
        return
    found = processor.resized_extents(height, width)
    assert found == smart_resize(height, width, step, least, most)
    assert all(side % step == 0 and side >= step for side in found)
    area = found[0] * found[1]
    assert area >= least
    # Above the largest area is only what is one token wide, or the smallest area after its sides are rounded up.
    assert step in found or area <= max(most, least + step * 15 * math.sqrt(least) + step**2)


@given(_SIDES, _SIDES, st.integers(1, 6000))
def test_smolvlm_resizes_by_the_rule_of_transformers(height: int, width: int, edge: int) -> None:
    processor = SmolVlmProcessor(None, 14, longest_edge=edge, tile_size=42, is_cut=True, resample=1, tokens_per_tile=9)
    expected = get_resize_output_image_size(SimpleNamespace(shape=(3, height, width)), edge)
    assert processor.resized_extents(height, width) == expected


@given(_SIDES, _SIDES, st.integers(1, 32), st.integers(1, 1024))
def test_siglip2_resizes_by_the_rule_of_transformers(height: int, width: int, side: int, most: int) -> None:
    processor = Siglip2Processor(None, side, max_num_patches=most, resample=2)
    found = processor.resized_extents(height, width)
    assert found == get_image_size_for_max_num_patches(height, width, side, most)
    assert found[0] * found[1] <= most * side * side or side in found


@given(_SIDES, _SIDES, st.integers(1, 12), st.integers(1, 24))
def test_internvl_cuts_by_the_rule_of_transformers(height: int, width: int, least: int, most: int) -> None:
    processor = GotOcr2Processor(None, 14, 448, 336, min(least, most), most, resample=3, tokens_per_tile=1)
    expected = get_optimal_tiled_canvas((height, width), (448, 336), min(least, most), most)
    assert processor.layout(height, width) == expected[::-1]


@given(_SIDES, _SIDES, st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=36))
def test_onevision_cuts_by_the_rule_of_transformers(height: int, width: int, layouts: list[tuple[int, int]]) -> None:
    grids = tuple(Grid(*layout) for layout in layouts)
    processor = LlavaOnevisionProcessor(None, 14, side=384, layouts=grids, max_tiles=9, resample=3, margin=(0, 0, 0))
    expected = select_best_resolution((height, width), [(384 * rows, 384 * columns) for rows, columns in layouts])
    assert processor.layout(height, width) == (expected[0] // 384, expected[1] // 384)


@given(_SIDES, _SIDES, st.integers(1, 2000), st.sampled_from([14, 16, 28]))
def test_pixtral_resizes_by_the_rule_of_transformers(height: int, width: int, edge: int, side: int) -> None:
    processor = PixtralProcessor(None, side, edge, edge, merge_size=1, resample=3)
    image = np.broadcast_to(np.uint8(0), (3, height, width))
    expected = pixtral_extents(image, (edge, edge), (side, side), "channels_first")
    assert processor.resized_extents(height, width) == tuple(max(side, extent) for extent in expected)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gemma3", {"size": {"height": 896, "width": 896}}),
        ("clip", {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}),
        ("pixtral", {"size": {"longest_edge": 1540}}),
        ("internvl", {"size": {"height": 448, "width": 448}, "max_patches": 4}),
        ("internvl", {"min_patches": 3, "max_patches": 5}),
        ("internvl", {"max_patches": 1}),
        ("smolvlm", {"size": {"longest_edge": 600}, "max_image_size": {"longest_edge": 512}, "resample": 0}),
        ("smolvlm", {"size": {"longest_edge": 64}}),
        ("siglip2", {"max_num_patches": 1}),
        ("siglip2", {"max_num_patches": 700, "patch_size": 14}),
        ("llava-onevision", {"image_grid_pinpoints": [[336, 56], [56, 336], [112, 112]]}),
        ("llavanext", {"size": {"height": 56, "width": 56}, "do_pad": False}),
        ("siglip", {"resample": 0}),
        ("siglip", {"resample": 1, "size": {"height": 70, "width": 42}}),
        ("siglip", {"do_rescale": False, "size": {"height": 31, "width": 44}}),  # no whole patches at the margins
        ("siglip", {"do_normalize": False}),
        ("siglip", {"rescale_factor": 1 / 127.5, "image_mean": 1, "image_std": [1.0, 0.5, 2]}),
        ("clip", {"size": 98, "default_to_square": True}),
        ("clip", {"do_center_crop": False, "size": {"height": 56, "width": 28}}),
    ],
)
def test_settings_are_as_in_transformers(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    processor = read_processor(write_checkpoint(tmp_path, name, **changes))
    for seed in range(4):
        assert_is_as_in_transformers(name, processor, odd_image(seed), f"seed {seed}", changes)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_what_transformers_saves_is_read(name: str, tmp_path: Path) -> None:
    processor = read_processor(write_checkpoint(tmp_path, name))
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": saved_settings(name)}))
    assert read_processor(tmp_path) == processor


def test_newer_checkpoints_have_the_settings_in_another_file(tmp_path: Path) -> None:
    processor = read_processor(write_checkpoint(tmp_path, "siglip"))
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "PaliGemmaProcessor"}))
    assert read_processor(tmp_path) == processor  # as the file has no settings of images
    nested = {"image_processor_type": "SiglipImageProcessorPil", "size": {"height": 28, "width": 14}}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": nested}))
    assert read_processor(tmp_path).height == 28
    (tmp_path / "preprocessor_config.json").unlink()
    assert read_processor(tmp_path).width == 14


def test_llava_counts_the_class_token_of_a_whole_tower(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "clip")
    image = np.zeros((9, 9, 3), np.uint8)
    assert read_processor(tmp_path).patches(image).num_tokens == 64
    config = CHECKPOINTS["clip"][1] | {"vision_feature_select_strategy": "full"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_processor(tmp_path).patches(image).num_tokens == 65


def test_llava_next_takes_the_patches_of_the_tower_alone(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llavanext")
    config = CHECKPOINTS["llavanext"][1] | {"vision_feature_select_strategy": "full"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match=r"vision_feature_select_strategy .* expected the one that leaves"):
        read_processor(tmp_path)


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_processor_type": "MllamaImageProcessor"}, "is 'MllamaImageProcessor': expected one of CLIP"),
        ({"image_processor_type": "Llama4ImageProcessorFast"}, "Llama4ImageProcessor, which .* for torchvision alone"),
        ({"image_processor_type": 3}, "is 3: expected one of"),
        ({"do_sharpen": True}, "not supported here: do_sharpen;"),
        ({"do_resize": False}, "do_resize of preprocessor_config.json is False: expected true"),
        ({"do_normalize": 1}, "do_normalize of .* is 1: expected true or false"),
        ({"resample": 6}, "resample of .* is 6: expected the number of a filter"),
        ({"resample": True}, "resample of .* is True"),
        ({"rescale_factor": 0}, "rescale_factor of .* is 0: expected a number above 0"),
        ({"rescale_factor": float("nan")}, "rescale_factor of .* is nan"),
        ({"image_mean": [0.5, 0.5]}, "image_mean of .* expected a number for each of 3 channels"),
        ({"image_std": [0.5, 0.5, 0]}, "image_std of .* expected numbers above 0"),
        ({"size": {"depth": 3}}, "size of .* is {'depth': 3}: expected {|not supported here: size;"),
        ({"size": {"height": -1, "width": 3}}, "size of .* expected {|not supported here: size;"),
    ],
)
def test_what_is_not_supported_is_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, name, **changes)
    with pytest.raises(EngineError, match=message):
        read_processor(tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("clip", {"do_center_crop": False}, "do_center_crop .* expected true"),
        ("gemma3", {"image_seq_length": 64}, "image_seq_length .* expected 256"),
        ("gemma3-cut", {"pan_and_scan_min_crop_size": 3}, "pan_and_scan_min_crop_size .* expected at least"),
        ("internvl", {"min_patches": 13}, "min_patches .* expected a whole number from 1 to 12"),
        ("llava-onevision", {"size": {"height": 56, "width": 28}}, "size .* expected tiles that are square"),
        ("llava-onevision", {"image_grid_pinpoints": [[56, 57]]}, "image_grid_pinpoints .* multiples of 56"),
        ("llava-onevision", {"image_grid_pinpoints": []}, "image_grid_pinpoints .* expected a list"),
        ("llava-onevision", {"image_mean": [0, 0, 2]}, "image_mean .* expected numbers from 0 to 1"),
        ("llavanext", {"crop_size": 42}, "crop_size .* expected 56 × the same"),
        ("llavanext", {"size": {"height": 56, "width": 28}}, "size .* expected tiles that are square"),
        ("llavanext", {"image_grid_pinpoints": [[56, 57]]}, "image_grid_pinpoints .* multiples of 56"),
        ("mistral3", {"patch_size": 16}, "patch_size .* expected 14"),
        ("siglip", {"size": {"height": 13, "width": 30}}, "patch_size .* a whole number from 1 to 13"),
        ("siglip", {"do_center_crop": True}, "not supported here: do_center_crop;"),
        ("siglip", {"do_pad": True}, "not supported here: do_pad;"),
        ("siglip", {"size": 224}, "size .* expected {height, width}"),  # transformers keeps the aspect ratio then
        ("qwen2-vl", {"min_pixels": 0}, "min_pixels .* expected a whole number from 1"),
    ],
)
def test_what_one_processor_does_not_support_is_refused(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, name, **changes)
    with pytest.raises(EngineError, match=message):
        read_processor(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json", "processor_config.json"])
def test_damaged_files_are_refused(content: bytes, file: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "siglip")
    (tmp_path / file).write_bytes(content)
    with pytest.raises(EngineError, match=f"{file} (is no JSON|holds \\[\\])"):
        read_processor(tmp_path)


def test_absent_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"config\.json cannot be read .* a model that takes images"):
        read_processor(tmp_path)


def test_thin_images_that_would_become_huge_are_refused(tmp_path: Path) -> None:
    processor = read_processor(write_checkpoint(tmp_path, "clip"))
    with pytest.raises(LimitError, match="the model's processor makes 112 × 11,200,000"):
        processor.patches(np.zeros((1, 100_000, 3), np.uint8))


def test_images_too_thin_for_all_layouts_are_as_in_transformers(tmp_path: Path) -> None:
    processor = read_processor(write_checkpoint(tmp_path, "llava-onevision"))
    assert_is_as_in_transformers("llava-onevision", processor, encoded(Image.new("RGB", (1500, 1))), "1500 × 1")


def test_the_layout_of_parts_is_said(tmp_path: Path) -> None:
    """Prompts name rows and columns of tiles, and features of tiles are joined by them."""
    image = np.zeros((100, 301, 3), np.uint8)
    layouts = {"gemma3": (0, 0), "gemma3-cut": (1, 3), "internvl": (2, 6), "siglip": (0, 0), "llava-onevision": (2, 6)}
    layouts |= {"llava1.5": (0, 0), "llavanext": (1, 3)}
    found = {name: read_processor(write_checkpoint(tmp_path, name)).patches(image).parts for name in layouts}
    assert found == layouts


def test_a_side_that_pixtral_rounds_to_nothing_is_one_token(tmp_path: Path) -> None:
    processor = read_processor(write_checkpoint(tmp_path, "mistral3"))
    patches = processor.patches(np.zeros((1, 1000, 3), np.uint8))
    assert patches.grids == ((2, 22),)
    assert patches.num_tokens == 11
