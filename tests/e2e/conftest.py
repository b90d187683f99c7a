"""A small random model as an LLM."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from tests.e2e.llm import LIMITS
from tests.models import save_tiny_model
from trtllm_lite import LLM, KvCacheConfig


@pytest.fixture(scope="package", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty engine cache."""
    root = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root))
        yield root / "trtllm_lite" / "engines"


@pytest.fixture(scope="package")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama."""
    directory = tmp_path_factory.mktemp("llm") / "model"
    save_tiny_model("llama", directory)
    return directory


@pytest.fixture(scope="package")
def reference(model_dir: Path) -> PreTrainedModel:
    """The small random model in transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir, attn_implementation="eager").eval()


@pytest.fixture(scope="package")
def llm(model_dir: Path) -> Iterator[LLM]:
    """The model with all limits and outputs that the tests need."""
    with LLM(
        model_dir, gather_context_logits=True, kv_cache_config=KvCacheConfig(tokens_per_block=16), **LIMITS
    ) as llm:
        yield llm
