"""Tokenizer files of a model: read by convert, then by the runtime, which encodes and decodes with them."""

import json
import random
from pathlib import Path

from tests.fuzz.damage import damaged, damaged_text
from tests.fuzz.documents import mutated
from tests.fuzz.model_files import write_tokenizer
from trtllm_lite.convert.tokenizers.files import read_tokenizer
from trtllm_lite.runtime.text.tokenizer import Tokenizer

COUNT = 300
_NAMES = ("tokenizer.json", "tokenizer_config.json")
_FLAGS = {"add_bos_token": True, "add_eos_token": True, "add_prefix_space": False, "extra_special_tokens": ["<x>"]}
_DECLARED = {"added_tokens_decoder": {"0": {"content": "<unk>", "lstrip": True, "special": True}}}
_BESIDE = {
    "special_tokens_map.json": {"pad_token": {"content": "<y>", "rstrip": True}},
    "added_tokens.json": {"<z>": 0},
}
_MESSAGES = [{"role": "user", "content": "ab"}]


class Target:
    """One file is changed, the others are valid."""

    def __init__(self, scratch: Path) -> None:
        write_tokenizer(scratch)
        self._documents = {name: json.loads((scratch / name).read_text()) for name in _NAMES} | _BESIDE

    def write(self, rng: random.Random, directory: Path) -> None:
        changed = rng.choice(list(self._documents))
        settings = self._documents["tokenizer_config.json"] | _FLAGS | rng.choice(({}, _DECLARED))
        for name, document in {**self._documents, "tokenizer_config.json": settings}.items():
            data = json.dumps(mutated(rng, document) if name == changed else document).encode()
            if name == changed and rng.random() < 0.2:
                data = rng.choice((damaged, damaged_text))(rng, data)
            (directory / name).write_bytes(data)
        self._renders = rng.random() < 0.02  # rendering starts a process each time

    def read(self, directory: Path) -> None:
        text, settings = read_tokenizer(directory)
        (directory / "tokenizer.json").write_text(text or "", encoding="utf-8")
        (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        tokenizer = Tokenizer.from_files(directory)
        for sample in ("", "abab <s> 你好🙂", " \n\0" * 50):
            ids = tokenizer.encode(sample)
            tokenizer.decode(ids)
            tokenizer.decode_all([*ids, 0, 1, 2**31])
        tokenizer.decode(range(300))
        if self._renders and tokenizer.chat_template is not None:
            tokenizer.chat_template.render(_MESSAGES)
