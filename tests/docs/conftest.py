"""Stand-ins for the files that documents name, in a directory, and a server, so that their blocks can run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model

from tests.encoders import write_pooling
from tests.models import save_tiny_model
from tests.serve.server import Server, serving
from trtllm_lite import LLM
from trtllm_lite.convert import convert_checkpoint

MAX_SEQ_LEN = 1024


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with random models, a checkpoint, an engine and an adapter, by the names of the documents."""
    directory = tmp_path_factory.mktemp("documents")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        model = save_tiny_model("llama", directory / "model", max_position_embeddings=MAX_SEQ_LEN)
        save_tiny_model("bert", directory / "encoder", max_position_embeddings=MAX_SEQ_LEN)
        write_pooling(directory / "encoder")
        get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"])).save_pretrained(
            str(directory / "adapters" / "sql")
        )
        convert_checkpoint(str(directory / "model"), directory / "ckpt")
        with LLM(directory / "model", gather_context_logits=True, max_batch_size=4, max_input_len=768) as llm:
            llm.save(directory / "engine")
        patch.chdir(directory)
        yield directory


@pytest.fixture(scope="package")
def server(world: Path) -> Iterator[Server]:
    """A server of the engine."""
    with serving(f"model={world / 'engine'}", "--tool_call_parser", "hermes") as running:
        yield running
