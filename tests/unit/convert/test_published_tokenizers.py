"""Tokenizers with the settings of published models give the ids that transformers gives."""

import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from tests.published_tokenizers import PUBLISHED, Published
from trtllm_lite.convert.tokenizers.files import read_tokenizer

_TEXTS = (
    *("the quick brown fox", "  the fox ", "The naïve café, Ünder e\u0301 你好", "1 22", "", "a</s>b", "<s>fox<s> fox"),
    *("x <think> fox</think> <tool_call>", "a\n\n  <|im_start|> user<|im_end|>b", "the<mask> fox [MASK] <unk>"),
)


@pytest.mark.parametrize("model", PUBLISHED, ids=lambda model: model.name)
def test_ids_equal_those_of_transformers(model: Published, tmp_path: Path) -> None:
    model.write(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    text, settings = read_tokenizer(tmp_path)
    ours = Tokenizer.from_str(str(text))
    added = [f" {token}  the{token}fox" for token in (*model.special, *model.plain)]
    bos = [ours.token_to_id(settings["bos_token"])] if model.adds_bos else []
    for sample in (*_TEXTS, *added):
        if model.odd and re.fullmatch(model.odd, sample, re.DOTALL):
            continue
        assert ours.encode(sample).ids == [*bos, *theirs(sample).input_ids], sample
        bare = theirs(sample, add_special_tokens=False).input_ids
        assert ours.encode(sample, add_special_tokens=False).ids == bare, sample
    for role in ("bos_token", "eos_token", "pad_token"):
        if model.settings.get(role):
            assert settings[role] == getattr(theirs, role)
