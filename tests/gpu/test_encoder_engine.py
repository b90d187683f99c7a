"""Encoders on the GPU, from a Hugging Face directory to ``LLM.embed``, against transformers in float32."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModel, AutoTokenizer

from tests.e2e.llm import random_prompts
from tests.encoders import expected_rows, write_pooling
from tests.gpu.device import arch
from tests.models import ENCODER_FAMILIES, round_matrices, save_tiny_model
from tests.real_models import CACHE, FILES
from tests.tolerances import ROUNDED_TOLERANCES, assert_close
from trtllm_lite import LLM

LIMITS = {"max_batch_size": 5, "max_input_len": 64, "max_seq_len": 64, "max_num_tokens": 100}
SHAPE = {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4}
TEXTS = [[3 if token in (1, 2) else token for token in text] for text in random_prompts(seed=0, count=23)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty engine cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ENCODER_FAMILIES)
def test_embeddings(family: str, dtype: str, first: bool, tmp_path: Path) -> None:
    model = round_matrices(save_tiny_model(family, tmp_path / "model", **SHAPE), dtype)
    write_pooling(tmp_path / "model", pooling_mode_mean_tokens=not first, pooling_mode_cls_token=first)
    with LLM(tmp_path / "model", target=arch(), dtype=dtype, **LIMITS) as llm:
        together = llm.embed(TEXTS)
        alone = [llm.embed(text) for text in TEXTS[:4]]
    np.testing.assert_allclose(alone, together[:4], atol=1e-2)
    expected = expected_rows(model, TEXTS, first=first, normalize=True)
    assert_close(np.array(together, np.float32), expected, dtype, table=ROUNDED_TOLERANCES)


@pytest.mark.parametrize("family", ["roberta", "mpnet", "modernbert"])
def test_long_texts(family: str, tmp_path: Path) -> None:
    """Texts exceed the table of distances and several windows; blocks have 128 queries."""
    changes: dict[str, Any] = {**SHAPE, "max_position_embeddings": 2050}
    model = round_matrices(save_tiny_model(family, tmp_path / "model", **changes), "bfloat16")
    texts = [[3 + token % 300 for token in range(length)] for length in (1500, 3, 700, 129)]
    limits = {"max_batch_size": 4, "max_input_len": 2000, "max_seq_len": 2000, "max_num_tokens": 2500}
    with LLM(tmp_path / "model", target=arch(), dtype="bfloat16", **limits) as llm:
        rows = np.array(llm.embed(texts), np.float32)
    assert_close(rows, expected_rows(model, texts), "bfloat16", table=ROUNDED_TOLERANCES)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_short_texts_beside_long_ones(family: str, tmp_path: Path) -> None:
    """Texts that several threads embed at once, in steps beside each other, have the embeddings of each alone."""
    save_tiny_model(family, tmp_path / "model", **SHAPE, max_position_embeddings=2050)
    write_pooling(tmp_path / "model")
    lengths = [[1500, 1100], [3, 40], [128], [7, 7, 90]]
    texts = [[[3 + (token * length) % 300 for token in range(length)] for length in call] for call in lengths]
    limits = {"max_batch_size": 16, "max_input_len": 2000, "max_seq_len": 2000, "max_num_tokens": 8000}
    with LLM(tmp_path / "model", target=arch(), dtype="bfloat16", **limits) as llm, ThreadPoolExecutor(8) as pool:
        alone = [[np.array(llm.embed(text), np.float32) for text in call] for call in texts]
        for call, rows in zip(texts * 50, pool.map(llm.embed, texts * 50), strict=True):
            np.testing.assert_allclose(rows, alone[texts.index(call)], atol=1e-2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_minilm(dtype: str) -> None:
    """all-MiniLM-L6-v2: real weights, its own tokenizer, and texts of very different lengths."""
    directory = CACHE / FILES["all-minilm-l6-v2"]
    if not directory.is_dir():
        pytest.skip(f"{directory.name} is not there: bash scripts/fetch_model.sh all-minilm-l6-v2")
    texts = ["A cat sits on the mat.", "Un chat est assis.", "naïve café", "x", "The weather is lovely today. " * 40]
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()
    expected = expected_rows(model, [tokenizer(text).input_ids for text in texts], normalize=True)
    with LLM(directory, target=arch(), dtype=dtype) as llm:
        rows = np.array(llm.embed(texts), np.float32)
    assert (rows * expected).sum(1).min() > 0.999
