"""Prompts with images, from a model of transformers to tokens, against transformers."""

import base64
import json
import shutil
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import SmolVLMForConditionalGeneration

from tests.tolerances import TOLERANCES, assert_close
from tests.vision_models import SMOLVLM_PROCESSOR, save_llava, save_smolvlm
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import ArgumentError, ConvertError

GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
SIZES = [(20, 70), (64, 64), (1, 200), (33, 31), (200, 20)]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smolvlm")


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> SmolVLMForConditionalGeneration:
    return save_smolvlm(model_dir)


@pytest.fixture(scope="module")
def checkpoint(model_dir: Path, reference: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    del reference
    path = tmp_path_factory.mktemp("vision") / "checkpoint"
    convert_checkpoint(str(model_dir), path)
    return path


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    engine = checkpoint.parent / "engine"
    build_engine(checkpoint, engine, max_seq_len=512, max_num_tokens=128, max_batch_size=4)
    with LLM(engine, num_threads=2) as llm:
        yield llm


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, height, width]).integers(0, 256, (height, width, 3)).astype(np.uint8)


def pixels_of(llm: LLM, images: list[np.ndarray]) -> torch.Tensor:
    """float32 [tiles, 3, 32, 32] as the model's config normalises them."""
    assert llm.vision is not None
    tiles = [llm.vision.encoder.processor.patches(image) for image in images]
    rows = np.concatenate([tile.rows for tile in tiles])
    squares = rows.reshape(-1, 8, 8, 3, 4, 4).transpose(0, 3, 1, 4, 2, 5).reshape(-1, 3, 32, 32)
    return normalised(squares)


def normalised(squares: np.ndarray) -> torch.Tensor:
    """Bytes [tiles, 3, height, width] as pixels of the processors here."""
    mean, std = torch.tensor([0.4, 0.5, 0.6])[:, None, None], torch.tensor([0.3, 0.25, 0.5])[:, None, None]
    return (torch.from_numpy(squares).float() / 255 - mean) / std


def expected_tokens(
    llm: LLM, model: SmolVLMForConditionalGeneration, ids: list[int], images: list[np.ndarray], count: int
) -> list[int]:
    given: dict[str, Any] = {"eos_token_id": -1}
    if images:
        given["pixel_values"] = pixels_of(llm, images)[None]
    tokens = torch.tensor(ids)[None]
    with torch.no_grad():
        output = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count, do_sample=False, **given
        )
    return output[0, len(ids) :].tolist()


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_images_are_those_of_the_reference(
    llm: LLM, reference: SmolVLMForConditionalGeneration, size: tuple[int, int]
) -> None:
    assert llm.vision is not None
    encoder = llm.vision.encoder
    image = picture(*size)
    patches = encoder.processor.patches(image)
    rows = encoder.submit([patches]).result()
    pixels = pixels_of(llm, [image])
    with torch.no_grad():
        seen = reference.model.vision_model(
            pixel_values=pixels, patch_attention_mask=torch.ones(len(pixels), 8, 8, dtype=torch.bool)
        )
        expected = reference.model.connector(seen.last_hidden_state).reshape(-1, encoder.size).numpy()
    assert rows.shape == (patches.num_tokens, encoder.size)
    assert_close(rows, expected, "float32", "rows of an image", TOLERANCES)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("<image>the quick dog", [SIZES[0]]),
        ("see <image> and <image>, which is it?", [SIZES[1], SIZES[3]]),
        ("no image at all", []),
        ("many <image><image><image>", [SIZES[2], SIZES[4], SIZES[3]]),
    ],
)
def test_tokens_are_those_of_the_reference(
    llm: LLM, reference: SmolVLMForConditionalGeneration, text: str, sizes: list[tuple[int, int]]
) -> None:
    """Prompts are longer than a step, so that images are cut by chunks of prompts."""
    images = [picture(*size) for size in sizes]
    prompt: Any = {"prompt": text, "multi_modal_data": {"image": images}} if images else text
    output = llm.generate(prompt, GREEDY)
    ids = list(output.prompt_token_ids)
    image_id = reference.config.image_token_id
    assert ids.count(image_id) == 16 * len(pixels_of(llm, images)) if images else image_id not in ids
    expected = expected_tokens(llm, reference, ids, images, 12)
    assert list(output.outputs[0].token_ids) == expected


def test_forms_of_images_are_alike(llm: LLM, tmp_path: Path) -> None:
    image = picture(40, 50)
    pillow = Image.fromarray(image)
    buffer = BytesIO()
    pillow.save(buffer, "PNG")
    path = tmp_path / "image.png"
    path.write_bytes(buffer.getvalue())
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    forms = (image, pillow, buffer.getvalue(), path, str(path))
    outputs = [llm.generate({"prompt": "it is <image>", "multi_modal_data": {"image": form}}, GREEDY) for form in forms]
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is it?"}]
    by_url = llm.chat([{"role": "user", "content": parts}], GREEDY)
    by_image = llm.chat([{"role": "user", "content": [{"type": "image", "image": pillow}, parts[1]]}], GREEDY)
    assert by_url.outputs[0].token_ids == by_image.outputs[0].token_ids
    assert by_url.prompt_token_ids == by_image.prompt_token_ids


def test_a_repeated_image_is_not_computed_again(llm: LLM) -> None:
    assert llm.vision is not None
    encoder = llm.vision.encoder
    prompt = {"prompt": "again <image>", "multi_modal_data": {"image": picture(60, 30, seed=7)}}
    first = llm.generate(prompt, GREEDY)
    before = encoder.stats().num_scheduled_tokens
    again = llm.generate(prompt, GREEDY)
    assert encoder.stats().num_scheduled_tokens == before
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    assert again.metrics.num_cached_tokens > 0
    salted = llm.generate(prompt, GREEDY, cache_salt="another tenant")
    assert encoder.stats().num_scheduled_tokens > before
    assert salted.metrics.num_cached_tokens == 0


@pytest.mark.parametrize(
    ("text", "count", "message"),
    [
        ("none", 1, "has 0 times <image> and 1 images"),
        ("<image><image>", 1, "has 2 times <image> and 1 images"),
    ],
)
def test_other_numbers_of_images_are_refused(llm: LLM, text: str, count: int, message: str) -> None:
    images = [picture(8, 8)] * count
    with pytest.raises(ArgumentError, match=message):
        llm.generate({"prompt": text, "multi_modal_data": {"image": images}}, GREEDY)


def test_urls_are_not_fetched(llm: LLM) -> None:
    part = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}
    with pytest.raises(ArgumentError, match="URLs of other hosts are not fetched"):
        llm.chat([{"role": "user", "content": [part]}], GREEDY)


def test_text_only(model_dir: Path, reference: object, tmp_path: Path) -> None:
    """Without its tower a model takes no images, and a conversion without a processor's settings fails."""
    del reference
    converted = convert_checkpoint(str(model_dir), tmp_path / "checkpoint", text_only=True)
    assert converted.describe().endswith("the text model alone")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", max_seq_len=64)
    assert not read_engine(tmp_path / "engine").manifest.module.inputs
    with LLM(tmp_path / "engine") as llm, pytest.raises(ArgumentError, match="has no vision tower"):
        llm.generate({"prompt": "<image>", "multi_modal_data": {"image": picture(8, 8)}}, GREEDY)
    bare = tmp_path / "bare"
    shutil.copytree(model_dir, bare, ignore=shutil.ignore_patterns("preprocessor_config.json"))
    with pytest.raises(ConvertError, match="say how images are preprocessed"):
        convert_checkpoint(str(bare), tmp_path / "other")


def test_engines_are_replaced_whole(checkpoint: Path, tmp_path: Path) -> None:
    for _ in range(2):
        build_engine(checkpoint, tmp_path / "engine", max_seq_len=64)
    assert (tmp_path / "engine" / "vision_tower" / "rank0.engine").is_file()


def test_heads_and_patches_are_padded(tmp_path: Path) -> None:
    """Heads of 18 elements become heads of 32, and patches of 12 bytes patches of 16."""
    model = save_smolvlm(tmp_path / "model", hidden_size=36, num_attention_heads=2, image_size=16, patch_size=2)
    settings = {**SMOLVLM_PROCESSOR, "size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}}
    (tmp_path / "model" / "preprocessor_config.json").write_text(json.dumps(settings))
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", max_seq_len=256)
    with LLM(tmp_path / "engine") as llm:
        assert llm.vision is not None
        patches = llm.vision.encoder.processor.patches(picture(20, 70))
        (rows,) = llm.vision.encoder.encode([patches])
    squares = patches.rows.reshape(-1, 8, 8, 3, 2, 2).transpose(0, 3, 1, 4, 2, 5).reshape(-1, 3, 16, 16)
    pixels = normalised(squares)
    with torch.no_grad():
        mask = torch.ones(len(pixels), 8, 8, dtype=torch.bool)
        seen = model.model.vision_model(pixel_values=pixels, patch_attention_mask=mask)
        expected = model.model.connector(seen.last_hidden_state).reshape(rows.shape).numpy()
    assert_close(rows, expected, "float32", "rows of an image", TOLERANCES)


@pytest.mark.parametrize(
    "config",
    [{}, {"vision_feature_layer": -1, "vision_feature_select_strategy": "full", "multimodal_projector_bias": False}],
    ids=["default", "full"],
)
def test_llava(config: dict[str, Any], tmp_path: Path) -> None:
    """CLIP's class token is left out, or, with all of the tower's output, the first row of an image."""
    model = save_llava(tmp_path / "model", **config)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", max_seq_len=256, max_batch_size=2)
    images = [picture(*size) for size in ((20, 70), (64, 40))]
    with LLM(tmp_path / "engine") as llm:
        assert llm.vision is not None
        prompt = {"prompt": "see <image> and <image>, too", "multi_modal_data": {"image": images}}
        output = llm.generate(prompt, GREEDY)
        patches = [llm.vision.encoder.processor.patches(image) for image in images]
    rows = np.concatenate([one.rows for one in patches])
    squares = rows.reshape(-1, 4, 4, 3, 8, 8).transpose(0, 3, 1, 4, 2, 5).reshape(-1, 3, 32, 32)
    ids = torch.tensor(output.prompt_token_ids)[None]
    with torch.no_grad():
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=normalised(squares),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=-1,
        )
    assert list(output.outputs[0].token_ids) == expected[0, ids.shape[1] :].tolist()
