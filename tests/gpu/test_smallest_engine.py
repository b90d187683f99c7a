"""A small engine in every kind of step, for compute-sanitizer (scripts/test_gpu.sh sanitize memcheck)."""

from pathlib import Path

import pytest

from tests.gpu import test_engine


@pytest.mark.parametrize("tiled", [False, True])
def test_prompts_decode_steps_and_sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiled: bool) -> None:
    monkeypatch.setattr(test_engine, "LENGTHS", (1, 33, 97, 64))
    monkeypatch.setattr(test_engine, "NUM_NEW_TOKENS", 4)
    case = test_engine.make_case("llama", "bfloat16", tmp_path, tiled)
    test_engine.test_logits_are_those_of_the_reference(case)
    test_engine.test_same_seed_same_tokens(case)
