"""scripts/random_model.py writes models of the families that have a preset."""

import json
import sys
from pathlib import Path

import pytest

from trtllm_lite.convert.mapping import map_model, open_source

ROOT = Path(__file__).resolve().parents[3]
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "vocab_size": 32}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}


@pytest.mark.parametrize(("shape", "changes"), [("llama-3.1-8b", {"rope_scaling": None}), ("qwen3-30b-a3b", EXPERTS)])
def test_a_model_is_of_the_family_of_its_shape(
    shape: str, changes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "scripts")])
    from random_model import main

    fields = json.loads((ROOT / "configs" / "models" / f"{shape}.json").read_text())
    tokens = {"bos_token_id": 0, "eos_token_id": 1}
    (tmp_path / "shape.json").write_text(json.dumps({**fields, **SIZES, **HEADS, **tokens, **changes}))
    monkeypatch.setattr(sys, "argv", ["random_model.py", str(tmp_path / "shape.json"), str(tmp_path / "model")])
    main()
    mapped = map_model(open_source(str(tmp_path / "model")), "auto")
    assert mapped.architecture == fields["architectures"][0]
    assert mapped.dtype == fields.get("dtype", fields.get("torch_dtype"))
