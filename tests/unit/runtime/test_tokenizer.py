"""Tokenizer files from untrusted sources, and failures of the library that reads them."""

import os

import pytest
from transformers import PreTrainedTokenizerFast

from tests.models import CHAT_TEMPLATE
from trtllm_lite.errors import ArgumentError, EngineError
from trtllm_lite.runtime.text import tokenizer_files
from trtllm_lite.runtime.text.tokenizer import Tokenizer

from .texts import TOKENIZERS, byte_level_tokenizer, sentencepiece_tokenizer, tiny_tokenizer

NAMES = ("tokenizer.json", "tokenizer_config.json")


def write_tokenizer(directory, settings="{}"):
    """Write a tokenizer's files, and return their checksums; the tests use a file's length as its checksum."""
    (directory / "tokenizer.json").write_text(byte_level_tokenizer()._backend.to_str())
    (directory / "tokenizer_config.json").write_text(settings)
    return {name: f"{len((directory / name).read_bytes()):08x}" for name in NAMES}


def read(directory, checksums):
    return Tokenizer.from_dir(directory, checksums, len)


def test_tokenizer_files_are_checked(tmp_path):
    checksums = write_tokenizer(tmp_path)
    assert read(tmp_path, checksums).encode("fox") == byte_level_tokenizer().encode("fox")
    assert read(tmp_path, {}) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EngineError, match="changed or damaged"):
        read(tmp_path, checksums)
    with pytest.raises(EngineError, match="not a tokenizer"):
        read(tmp_path, {"tokenizer.json": "00000002"})
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(EngineError, match="cannot be read"):
        read(tmp_path, checksums)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"a":' * 100_000, "not JSON"),
        ("[1]", r"holds \[1\]: expected an object"),
        ("null", "holds None"),
        ('{"chat_template": [null]}', "chat_template"),
    ],
)
def test_settings_must_be_an_object_of_json(tmp_path, settings, message):
    with pytest.raises(EngineError, match=message):
        read(tmp_path, write_tokenizer(tmp_path, settings))


@pytest.mark.parametrize("name", ["/dev/zero", "../secret", "secret", "tokenizer.json\0", "sub/tokenizer.json", ""])
def test_only_files_of_tokenizers_are_read(tmp_path, name):
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(EngineError, match=r"names the file .* expected tokenizer.json or tokenizer_config.json"):
        read(tmp_path, {name: "00000006"})


def test_links_stay_in_the_directory(tmp_path):
    engine = tmp_path / "engine"
    engine.mkdir()
    checksums = write_tokenizer(engine)
    (engine / "tokenizer.json").rename(engine / "data")
    (engine / "tokenizer.json").symlink_to("data")
    assert read(engine, checksums) is not None
    (engine / "data").rename(tmp_path / "data")
    (engine / "tokenizer.json").unlink()
    (engine / "tokenizer.json").symlink_to("../data")
    with pytest.raises(EngineError, match="a link to a file outside"):
        read(engine, checksums)


@pytest.mark.parametrize("open_files", [read, lambda directory, _: Tokenizer.from_files(directory)])
def test_only_plain_files_of_bounded_size_are_read(tmp_path, open_files, monkeypatch):
    checksums = write_tokenizer(tmp_path)
    limits = {"tokenizer.json": 1 << 20, "tokenizer_config.json": 1}
    monkeypatch.setattr(tokenizer_files, "max_file_bytes", limits.__getitem__)
    with pytest.raises(EngineError, match="has 2 bytes, which exceeds the limit of 1"):
        open_files(tmp_path, checksums)
    (tmp_path / "tokenizer_config.json").unlink()
    os.mkfifo(tmp_path / "tokenizer_config.json")
    with pytest.raises(EngineError, match="not a plain file"):
        open_files(tmp_path, checksums)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "tokenizer_config.json").mkdir()
    with pytest.raises(EngineError, match=r"cannot be read|not a plain file"):
        open_files(tmp_path, checksums)


class PanicException(BaseException):
    """The exception by which a panic of the Rust library arrives."""


class Panicking:
    """A backend of the tokenizers library that panics."""

    def no_truncation(self):
        pass

    no_padding = no_truncation

    def encode_batch_fast(self, *_, **__):
        raise PanicException("index out of bounds")

    decode_batch = encode_batch_fast


def test_a_panic_of_the_library_is_an_error():
    tokenizer = Tokenizer(Panicking(), {})
    with pytest.raises(ArgumentError, match="index out of bounds"):
        tokenizer.encode("x")
    with pytest.raises(EngineError, match="index out of bounds"):
        tokenizer.decode([1])


def test_what_is_no_text_is_refused():
    with pytest.raises(ArgumentError, match="not valid Unicode"):
        byte_level_tokenizer().encode("fox \udcff")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_no_token_is_longer_than_the_longest(name):
    tokenizer = TOKENIZERS[name]()
    for text in ("the quick brown fox", "the " * 50, "fox"):
        assert len(text) <= len(tokenizer.encode(text)) * tokenizer.max_token_chars


@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_conversations_become_what_transformers_makes_of_them(add_generation_prompt):
    given = {"chat_template": CHAT_TEMPLATE, "bos_token": "<|begin|>", "eos_token": "<|end|>"}
    reference = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer(), **given)
    conversation = [{"role": "user", "content": "the <quick> fox"}, {"role": "assistant", "content": "jumps"}]
    options = {"add_generation_prompt": add_generation_prompt}
    own = byte_level_tokenizer()
    for tokenize in (True, False):
        expected = reference.apply_chat_template(conversation, tokenize=tokenize, return_dict=False, **options)
        assert own.apply_chat_template(conversation, tokenize=tokenize, **options) == expected
    with pytest.raises(ArgumentError, match="no chat template"):
        sentencepiece_tokenizer().apply_chat_template(conversation)
