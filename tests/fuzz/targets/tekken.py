"""tekken.json: a small file of Mistral's tokenizer changed in one place, made into a tokenizer."""

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


class Target:
    """A file of two special tokens with names and two without."""

    def __init__(self, scratch: Path) -> None:
        del scratch
        words = enumerate(base64.b64encode(word).decode() for word in _WORDS)
        config = {"pattern": r" ?\p{L}+|\s+|.", "default_vocab_size": len(_WORDS) + 4, "default_num_special_tokens": 4}
        self._content = {
            "config": {**config, "version": "v11"},
            "vocab": [{"rank": rank, "token_bytes": word} for rank, word in words],
            "special_tokens": [{"rank": rank, "token_str": text} for rank, text in enumerate(("<unk>", "<s>"))],
        }

    def write(self, rng: random.Random, directory: Path) -> None:
        part = rng.choice((None, "config", "special_tokens"))  # None changes any value, mostly in the vocabulary
        content = mutated(rng, self._content) if part is None else dict(self._content)
        if part is not None:
            content[part] = mutated(rng, self._content[part])
        data = json.dumps(content).encode()
        (directory / "tekken.json").write_bytes(damaged_text(rng, data) if rng.random() < 0.2 else data)

    def read(self, directory: Path) -> None:
        text, _ = read_tokenizer(directory)
        tokenizer = Tokenizer.from_str(str(text))
        for sample in ("", " ab abab é🙂 <s>", "\0\n" * 20):
            tokenizer.decode(tokenizer.encode(sample).ids)
