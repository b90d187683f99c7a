"""Two tokenizers that stand for the two kinds in use: byte-level BPE, and SentencePiece with byte fallback."""

import json
from functools import cache

from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, trainers

from tests.models import CHAT_TEMPLATE, tiny_tokenizer
from trtllm_lite.runtime.text.tokenizer import Tokenizer

# Characters of one to four bytes, known and unknown to the vocabularies, spaces that decoders like to eat.
TEXT = st.text(st.sampled_from("the quick foxé ß你好🙂👍\n\t  .,▁\u200d\N{REPLACEMENT CHARACTER}Ω"), max_size=30)


@cache
def sentencepiece_backend() -> Backend:
    """Spaces as ▁, one prepended (and stripped by the decoder); unknown characters as bytes (Llama 2, Mistral)."""
    backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    backend.train_from_iterator(["the quick brown fox and the other foxes", "the fox, the quick fox."] * 8, trainer)
    # Trained as special tokens so that each has an id; ordinary from here on, or decoding would skip them.
    backend = _with_ordinary_bytes(backend)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def _with_ordinary_bytes(backend: Backend) -> Backend:
    raw = json.loads(backend.to_str())
    raw["added_tokens"] = [token for token in raw["added_tokens"] if not token["content"].startswith("<0x")]
    return Backend.from_str(json.dumps(raw))


@cache
def byte_level_tokenizer() -> Tokenizer:
    """The tiny tokenizer of all tests, with its chat template."""
    return Tokenizer(
        tiny_tokenizer(), {"chat_template": CHAT_TEMPLATE, "bos_token": "<|begin|>", "eos_token": "<|end|>"}
    )


@cache
def sentencepiece_tokenizer() -> Tokenizer:
    """:func:`sentencepiece_backend`, without a chat template."""
    return Tokenizer(sentencepiece_backend(), {})


TOKENIZERS = {"byte_level": byte_level_tokenizer, "sentencepiece": sentencepiece_tokenizer}
