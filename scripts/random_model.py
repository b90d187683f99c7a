"""Writes a Hugging Face model of random weights: ``random_model.py SHAPE DIRECTORY``, a shape of configs/models.

The script needs torch and transformers, and uses a GPU where there is one.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast


def main() -> None:
    """Write the model: transformers' initial weights, in the shape's own type, and a tokenizer of numbers alone."""
    shape, directory = map(Path, sys.argv[1:])
    config = LlamaConfig(**json.loads(shape.read_text()))
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=config.dtype)
    model.save_pretrained(directory)
    numbers = WordLevel({str(number): number for number in range(config.vocab_size)}, unk_token="0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(numbers)).save_pretrained(directory)


if __name__ == "__main__":
    main()
