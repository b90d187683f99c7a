"""Writes a tokenizer of made-up words: ``random_tokenizer.py SHAPE DIRECTORY``, for a model of random weights.

SHAPE is one of configs/models. The words are bytes and letters in the form of byte-level BPE, with the lengths of
English text, so that decoding random tokens takes as long as decoding real ones.
"""

import json
import string
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPACE = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"  # a space in byte-level BPE
MEAN_LETTERS = 4.5


def words(count: int) -> list[str]:
    """``count`` different words: first the 256 bytes, then letters, some of them after a space."""
    found = dict.fromkeys(sorted(pre_tokenizers.ByteLevel.alphabet()))
    random = np.random.default_rng(0)
    letters = np.array(list(string.ascii_lowercase))
    while len(found) < count:
        word = "".join(random.choice(letters, 1 + random.poisson(MEAN_LETTERS)))
        found[SPACE * int(random.random() < 0.6) + word] = None
    return list(found)


def main() -> None:
    """Write tokenizer.json."""
    shape, directory = map(Path, sys.argv[1:])
    config = json.loads(shape.read_text())  # of a model that sees, too, the text's part has the vocabulary
    vocabulary = words(config.get("text_config", config)["vocab_size"])
    tokenizer = Tokenizer(models.BPE({word: token for token, word in enumerate(vocabulary)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))


if __name__ == "__main__":
    main()
