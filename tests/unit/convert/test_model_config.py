"""A config.json that says too little is refused with the remedy."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.models import tiny_config
from trtllm_lite.convert.model_config import open_model_config
from trtllm_lite.errors import ConvertError


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "'fp8'"),
        ({"bits": 4}, "None"),
        ("awq", "'awq'"),
    ],
)
def test_quantized_models_need_a_checkpoint(settings: Any, named: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {**tiny_config("qwen3_moe").to_dict(), "architectures": ["Qwen3MoeForCausalLM"]}
    path.write_text(json.dumps({**config, "quantization_config": settings}))
    with pytest.raises(ConvertError, match=rf"quantized \({named}\).*take quantization_config out of the file"):
        open_model_config(path)
    path.write_text(json.dumps({**config, "quantization_config": None}))
    assert open_model_config(path).config.family == "qwen3_moe"
