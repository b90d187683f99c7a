"""Two tokenizers, one of each kind in use: byte-level BPE, and SentencePiece with byte fallback."""

import atexit
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, trainers

from tests.models import CHAT_TEMPLATE, tiny_tokenizer
from trtllm_lite import _core
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.runtime.text.words import Words

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Characters of one to four bytes, known and unknown to the vocabularies, and spaces, which decoders may strip.
TEXT = st.text(st.sampled_from("the quick foxé ß你好🙂👍\n\t  .,▁\u200d\N{REPLACEMENT CHARACTER}Ω"), max_size=30)


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """A cache emptied at exit: or else modules, which pytest keeps, would keep objects of the extension."""
    cached = cache(function)
    atexit.register(cached.cache_clear)
    return cached


@cache
def sentencepiece_backend() -> Backend:
    """A tokenizer like Llama 2's: ▁ for spaces, one of them prepended, and bytes for unknown characters."""
    backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    backend.train_from_iterator(["the quick brown fox and the other foxes", "the fox, the quick fox."] * 8, trainer)
    # The bytes were special tokens in training so that each has an id; decoding would skip them if they stayed special.
    backend = _with_ordinary_bytes(backend)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def _with_ordinary_bytes(backend: Backend) -> Backend:
    raw = json.loads(backend.to_str())
    raw["added_tokens"] = [token for token in raw["added_tokens"] if not token["content"].startswith("<0x")]
    return Backend.from_str(json.dumps(raw))


@kept
def byte_level_tokenizer() -> Tokenizer:
    """The tiny tokenizer of all tests, with its chat template."""
    return Tokenizer(
        tiny_tokenizer(), {"chat_template": CHAT_TEMPLATE, "bos_token": "<|begin|>", "eos_token": "<|end|>"}
    )


@kept
def sentencepiece_tokenizer() -> Tokenizer:
    """:func:`sentencepiece_backend`, without a chat template."""
    return Tokenizer(sentencepiece_backend(), {})


TOKENIZERS = {"byte_level": byte_level_tokenizer, "sentencepiece": sentencepiece_tokenizer}


def text_stream(token_bytes: Any, prompt_ids: Sequence[int] = (), words: Words | None = None, **options: Any) -> Any:
    """``_core.TextStream`` of a request."""
    return _core.TextStream(token_bytes, np.array(prompt_ids, np.int32), (words or Words()).matcher, **options)


def push(stream: Any, token_ids: Sequence[int], *, ends: bool = False) -> list[str]:
    """The pieces of text that the tokens give, up to a stop word."""
    ((pieces,), _, failed) = _core.TextPump([1.0]).push([stream], [list(token_ids)], [0] if ends else [])
    assert not failed
    return pieces


def pieces_of(
    tokenizer: Tokenizer, token_ids: Sequence[int], prompt_ids: Sequence[int] = (), **options: Any
) -> list[str]:
    """The pieces that a stream returns for the tokens, and the piece that ends it."""
    stream = text_stream(tokenizer.token_bytes, prompt_ids, **options)
    return [*push(stream, token_ids), stream.finish()]
