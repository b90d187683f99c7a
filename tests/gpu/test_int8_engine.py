"""Engines with int8 weights on the card: logits of transformers with weights rounded alike, in steps of all sizes."""

from pathlib import Path

import pytest

from tests.gpu.test_engine import Case, check_logits, make_case, prompts
from tests.models import quantize_linear_layers

KINDS = [
    ("llama", "bfloat16", False),
    ("llama", "bfloat16", True),
    ("qwen3", "float16", False),
    ("phi3", "bfloat16", False),
    ("gemma2", "bfloat16", True),
]


@pytest.mark.parametrize(("family", "dtype", "tiled"), KINDS)
def test_logits_are_those_of_quantized_transformers(family: str, dtype: str, tiled: bool, tmp_path: Path) -> None:
    made = make_case(family, dtype, tmp_path, tiled, qformat="int8_wo")
    case = Case(dtype, made.runner, quantize_linear_layers(made.reference, "int8_wo"))
    for batch_size in (20, 9, 1):  # weights are dequantized first; GEMV; GEMV for one row
        check_logits(case, prompts()[:batch_size])
