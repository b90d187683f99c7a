"""A vision tower on the GPU here, beside its decoder, against transformers in float32."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import SmolVLMForConditionalGeneration

from tests.tolerances import GPU_TOLERANCES, assert_close
from tests.vision_models import SMOLVLM_PROCESSOR, save_smolvlm
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint

SIZES = [(20, 70), (64, 64), (1, 200), (33, 31), (200, 20)]
TOWER = {"intermediate_size": 192, "num_attention_heads": 2, "image_size": 32, "patch_size": 4}
HEAD_DIMS = (64, 72)  # the second of which is padded


@pytest.fixture(scope="module", params=["bfloat16", "float16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=HEAD_DIMS)
def head_dim(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, dtype: str, head_dim: int) -> Path:
    return tmp_path_factory.mktemp(f"vision_{dtype}_{head_dim}")


@pytest.fixture(scope="module")
def reference(directory: Path, dtype: str, head_dim: int) -> SmolVLMForConditionalGeneration:
    tower = {**TOWER, "hidden_size": 2 * head_dim}
    return save_smolvlm(directory / "model", dtype=getattr(torch, dtype), **tower).float()


@pytest.fixture(scope="module")
def llm(directory: Path, reference: object, dtype: str) -> Iterator[LLM]:
    del reference
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    build_engine(directory / "checkpoint", directory / "engine", target="sm_90", max_seq_len=512, max_num_tokens=128)
    with LLM(directory / "engine") as llm:
        yield llm


def test_rows_of_images(llm: LLM, reference: SmolVLMForConditionalGeneration, dtype: str) -> None:
    """Images of a call share steps, whose results are those of each image alone."""
    assert llm.vision is not None
    encoder, rng = llm.vision.encoder, np.random.default_rng(0)
    images = [rng.integers(0, 256, (*size, 3)).astype(np.uint8) for size in SIZES]
    patches = [encoder.processor.patches(image) for image in images]
    rows = encoder.submit(patches).result()
    tiles = np.concatenate([one.rows for one in patches])
    squares = tiles.reshape(-1, 8, 8, 3, 4, 4).transpose(0, 3, 1, 4, 2, 5).reshape(-1, 3, 32, 32)
    mean, std = (torch.tensor(SMOLVLM_PROCESSOR[key])[:, None, None] for key in ("image_mean", "image_std"))
    pixels = (torch.from_numpy(squares).float() / 255 - mean) / std
    with torch.no_grad():
        mask = torch.ones(len(pixels), 8, 8, dtype=torch.bool)
        seen = reference.model.vision_model(pixel_values=pixels, patch_attention_mask=mask)
        expected = reference.model.connector(seen.last_hidden_state).reshape(-1, encoder.size).numpy()
    assert_close(rows, expected, dtype, "rows of images", GPU_TOLERANCES)


def test_prompts_with_images(llm: LLM) -> None:
    """A repeated prompt has the same answer, from the cache, in which another image finds the text before it alone."""
    rng = np.random.default_rng(1)
    images = [rng.integers(0, 256, (40, 60, 3)).astype(np.uint8) for _ in range(2)]
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    prompts = [{"prompt": "see <image>, what is it?", "multi_modal_data": {"image": images[i]}} for i in (0, 0, 1)]
    outputs = [llm.generate(prompt, params) for prompt in prompts]
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids
    assert outputs[1].metrics.num_cached_tokens > 0
    assert outputs[2].metrics.num_cached_tokens == 0
