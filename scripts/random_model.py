"""Writes a Hugging Face model of random weights: ``random_model.py SHAPE DIRECTORY [CHECKPOINT]``.

SHAPE is one of configs/models, for a class of transformers that generates text. The model has the tokenizer and the end
tokens of a converted CHECKPOINT, or a tokenizer of numbers. The script needs torch and transformers, and uses a GPU if
there is one.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from trtllm_lite.convert.tokenizers.files import SETTINGS_FILE, TOKENIZER_FILE


def main() -> None:
    """Write the model: transformers' initial weights, in the shape's own type, and a tokenizer."""
    shape, directory, *checkpoint = map(Path, sys.argv[1:])
    fields = json.loads(shape.read_text())
    config = getattr(transformers, fields["architectures"][0]).config_class(**fields)
    for given in checkpoint:
        config.eos_token_id = json.loads((given / "config.json").read_text())["eos_token_ids"]
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=config.dtype)
    model.save_pretrained(directory)
    for given in checkpoint:
        for name in (TOKENIZER_FILE, SETTINGS_FILE):
            shutil.copy(given / name, directory)
    if checkpoint:
        return
    numbers = WordLevel({str(number): number for number in range(config.vocab_size)}, unk_token="0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(numbers)).save_pretrained(directory)


if __name__ == "__main__":
    main()
