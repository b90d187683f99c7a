"""Rank files of tiktoken: a small file of one of the known classes changed in one place, made into a tokenizer."""

import base64
import json
import random
from pathlib import Path

from tokenizers import Tokenizer

from tests.fuzz.damage import damaged_text
from tests.fuzz.documents import mutated
from trtllm_lite.convert.tokenizers.files import read_tokenizer

COUNT = 200
_WORDS = (*(bytes([byte]) for byte in range(256)), b"ab", b" ab", b"abab", "é".encode(), b"\xf0\x9f", b"  ")
_CLASSES = {"tiktoken.model": "tokenization_kimi.TikTokenTokenizer", "qwen.tiktoken": "tokenization_qwen.QWenTokenizer"}


class Target:
    """A file of six words, and the settings of its class with two special tokens."""

    def __init__(self, scratch: Path) -> None:
        del scratch
        self._lines = [base64.b64encode(word) + b" %d\n" % rank for rank, word in enumerate(_WORDS)]

    def write(self, rng: random.Random, directory: Path) -> None:
        name, reader = rng.choice(sorted(_CLASSES.items()))
        added = {str(262 + n): {"content": text, "special": True} for n, text in enumerate(("[BOS]", "<|im_end|>"))}
        settings = {"auto_map": {"AutoTokenizer": [reader, None]}, "bos_token": "[BOS]"}
        if name == "tiktoken.model":
            settings["added_tokens_decoder"] = added
        data = b"".join(self._lines)
        if rng.random() < 0.5:
            settings = mutated(rng, settings)
        else:
            data = damaged_text(rng, data)
        (directory / name).write_bytes(data)
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))

    def read(self, directory: Path) -> None:
        text, _ = read_tokenizer(directory)
        tokenizer = Tokenizer.from_str(str(text))
        for sample in ("", " ab abab é🙂 [BOS]", "\0\n" * 20):
            tokenizer.decode(tokenizer.encode(sample).ids)
