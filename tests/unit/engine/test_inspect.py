import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.builder.checkpoints import LIMITS, save_checkpoint
from tests.unit.engine.samples import write_sample
from trtllm_lite.builder import build_engine
from trtllm_lite.engine.inspect import format_bytes, inspect_path
from trtllm_lite.errors import EngineError


def _rendered(path: Path) -> str:
    console = Console(width=100, file=io.StringIO())
    inspect_path(path).render(console)
    return console.file.getvalue()


def test_an_engine_directory(tmp_path: Path) -> None:
    build_engine(save_checkpoint(tmp_path / "checkpoint", "qwen3"), tmp_path / "engine", **LIMITS)
    found = inspect_path(tmp_path / "engine")
    assert (found.kind, found.target) == ("engine", "cpu")
    assert found.limits["max_num_tokens"] == 48
    assert found.operators["PagedAttention"] == 2
    assert found.memory["total"] == sum(found.memory[kind] for kind in ("weights", "kv_cache", "workspace"))
    assert set(found.file_bytes) == {"rank0.engine", "config.json", "tokenizer.json", "tokenizer_config.json"}
    fusions = {item.pass_name: (item.fused, item.candidates) for item in found.fusions}
    assert fusions["merge_qkv"] == (2, 2)
    assert fusions["add_rms_norm"] == (4, 5)
    assert json.loads(json.dumps(found.to_dict()))["kind"] == "engine"


def test_the_text_tells_what_was_not_fused_and_why(tmp_path: Path) -> None:
    text = _rendered(write_sample(tmp_path / "rank0.engine"))
    assert "merge_qkv    1 of 2" in text
    assert "not fused by merge_qkv" in text
    assert "layers.1.attention    they read different inputs" in text
    assert "1.0 KiB (1,024 B)" in text
    assert "temperature=0.7" in text


def test_a_checkpoint_directory(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "bfloat16")
    found = inspect_path(checkpoint)
    assert (found.kind, found.target, found.limits) == ("checkpoint", "", {})
    assert found.operators["MatMul"] == 15
    assert set(found.memory) == {"weights in bfloat16", "weights in float32"}
    assert {item.pass_name: item.fused for item in found.fusions}["merge_gate_up"] == 2
    assert "weights in bfloat16" in _rendered(checkpoint)


def test_neither_engine_nor_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"neither an engine .* nor a checkpoint .*`trtllm-lite convert`"):
        inspect_path(tmp_path)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB (1,536 B)"), (5 << 30, "5.0 GiB (5,368,709,120 B)")],
)
def test_bytes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text
