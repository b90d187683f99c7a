"""Reads the tokenizer of a Hugging Face directory: tokenizer.json, or else one made from other files.

The other files are Mistral's tekken.json, SentencePiece's tokenizer.model, vocab.json with merges.txt, and tiktoken's
rank files; the first that exists counts.
"""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trtllm_lite.common.foreign_files import read_foreign
from trtllm_lite.common.library_errors import LibraryErrors
from trtllm_lite.common.vocabulary import MAX_TOKENIZER_BYTES, PROMPT_SETTING
from trtllm_lite.convert.metadata.ignored import IgnoredKeys
from trtllm_lite.convert.tokenizers.chat_templates import NAMED_FILES, TEMPLATE_FILE, read_chat_templates
from trtllm_lite.convert.tokenizers.merged_files import MERGED_FILES, read_merged
from trtllm_lite.convert.tokenizers.sentencepiece_file import SentencePieceFile, read_sentencepiece
from trtllm_lite.convert.tokenizers.sentencepiece_tokenizer import add_around, build_tokenizer
from trtllm_lite.convert.tokenizers.settings import (
    ADDED_TOKENS_FILE,
    SETTINGS_FILE,
    SPECIAL_TOKENS_FILE,
    TokenizerSettings,
    add_tokens,
    put_ends,
    read_settings,
)
from trtllm_lite.convert.tokenizers.tekken_file import TEKKEN_FILE, read_tekken
from trtllm_lite.convert.tokenizers.text import set_text_flags
from trtllm_lite.convert.tokenizers.tiktoken_file import TIKTOKEN_FILES, find_tiktoken, read_tiktoken
from trtllm_lite.errors import ConvertError, shown

TOKENIZER_FILE = "tokenizer.json"
SENTENCEPIECE_FILE = "tokenizer.model"
WORDS_FILE = "vocab.txt"
_SAVE = "`AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)` of transformers"
FILES = (
    *(TOKENIZER_FILE, TEKKEN_FILE, SENTENCEPIECE_FILE, *MERGED_FILES, *TIKTOKEN_FILES, WORDS_FILE),
    *(SETTINGS_FILE, ADDED_TOKENS_FILE, SPECIAL_TOKENS_FILE),
    *(TEMPLATE_FILE, NAMED_FILES),
)
"""Names and patterns of the files of a model directory that :func:`read_tokenizer` reads."""

_REMEDY = "download it again"
_MAX_TOKENS = 1 << 24  # every vocabulary has fewer tokens


def read_tokenizer(path: Path, ignored: IgnoredKeys | None = None) -> tuple[str | None, dict[str, Any]]:
    """The text of tokenizer.json, None if the model has no tokenizer, and its chat templates and token strings.

    The text includes changes that other files make to tokenizer.json; without changes it is the file's own. Raises
    ConvertError if a file is damaged or needs an unsupported feature, or if a SentencePiece model cannot be expressed.
    """
    ignored = ignored or IgnoredKeys()
    settings = read_settings(path, ignored)
    strings = settings.strings
    if (path / TOKENIZER_FILE).is_file():
        text: str | None = _from_tokenizer(path / TOKENIZER_FILE, settings)
    elif (path / TEKKEN_FILE).is_file():
        with LibraryErrors(ConvertError, f"{path / TEKKEN_FILE} is not a tokenizer", _REMEDY):
            tekken = read_tekken(path / TEKKEN_FILE, ignored)
            strings = tekken.strings | strings
            text = _with_ends(tekken.tokenizer(), path, settings, strings, settings.raw)
    elif (path / SENTENCEPIECE_FILE).is_file():
        model = read_sentencepiece(path / SENTENCEPIECE_FILE)
        found = {"bos_token": model.bos, "eos_token": model.eos, "unk_token": model.unknown}
        strings = {name: token for name, token in found.items() if token} | strings
        with LibraryErrors(ConvertError, f"{path / SENTENCEPIECE_FILE} is not a tokenizer", _REMEDY):
            text = _from_sentencepiece(path, model, settings, strings)
            Tokenizer.from_str(text)
    elif all((path / name).is_file() for name in MERGED_FILES):
        with LibraryErrors(ConvertError, f"{path / MERGED_FILES[0]} is not a tokenizer", _REMEDY):
            merged, settings = read_merged(path, settings, _SAVE)
            text = _finished(merged, path, settings)
        strings = settings.strings
    elif (ranks := find_tiktoken(path)) is not None:
        with LibraryErrors(ConvertError, f"{ranks} is not a tokenizer", _REMEDY):
            added = {number: token.content for number, token in settings.added.items()}
            ranked = read_tiktoken(ranks, settings.raw, added, f"{_SAVE}, with the package tiktoken")
            text = _finished(ranked, path, settings)
    else:
        _refuse_words(path)
        text = None
    template = read_chat_templates(path, settings.raw)
    strings |= {key: settings.raw[key] for key in (PROMPT_SETTING,) if key in settings.raw}
    return text, strings if template is None else strings | {"chat_template": template}


def _refuse_words(path: Path) -> None:
    """Raise ConvertError for a tokenizer in a list of words; without any tokenizer files nothing is wrong."""
    if (path / WORDS_FILE).exists():
        raise ConvertError(
            f"{path} has its tokenizer in {WORDS_FILE} alone, expected {TOKENIZER_FILE} or {SENTENCEPIECE_FILE}: "
            f"create {TOKENIZER_FILE} with {_SAVE} or remove {WORDS_FILE} to convert a model that takes and gives "
            "token ids"
        )


def _from_tokenizer(path: Path, settings: TokenizerSettings) -> str:
    """The text of the tokenizer.json ``path``, changed by ``settings``."""
    data = read_foreign(path, MAX_TOKENIZER_BYTES)
    with LibraryErrors(ConvertError, f"{path} is not a tokenizer", _REMEDY):
        text = data.decode()
        tokenizer = Tokenizer.from_str(text)
        return _changed(tokenizer, path, settings) or text


def _finished(tokenizer: Tokenizer, path: Path, settings: TokenizerSettings) -> str:
    """The text of a tokenizer that was made of other files in ``path``, changed by ``settings``."""
    _check_numbers(tokenizer, path)
    return _changed(tokenizer, path, settings) or tokenizer.to_str()


def _changed(tokenizer: Tokenizer, path: Path, settings: TokenizerSettings) -> str | None:
    """The text of the tokenizer of ``path`` with the changes of ``settings``; None if they change nothing."""
    steps = (
        add_tokens(tokenizer, settings),
        set_text_flags(tokenizer, settings.raw),
        put_ends(tokenizer, settings),
    )
    if not any(steps):
        return None
    _check_numbers(tokenizer, path)
    return tokenizer.to_str()


def _check_numbers(tokenizer: Tokenizer, path: Path) -> None:
    """Raise ConvertError for a token id so high that writing the tokenizer, id by id, takes gigabytes."""
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if highest >= _MAX_TOKENS:
        raise ConvertError(f"{path} has the token id {highest}, expected ids below {_MAX_TOKENS}: {_REMEDY}")


def _from_sentencepiece(
    path: Path, model: SentencePieceFile, settings: TokenizerSettings, strings: dict[str, str]
) -> str:
    """The text of the tokenizer of a SentencePiece model."""
    flags = {"add_prefix_space": settings.raw.get("add_prefix_space")}
    return _with_ends(build_tokenizer(model.vocabulary), path, settings, strings, flags)


def _with_ends(
    tokenizer: Tokenizer, path: Path, settings: TokenizerSettings, strings: dict[str, str], flags: dict[str, Any]
) -> str:
    """The text of ``tokenizer`` with the tokens that the directory adds and ``flags``, and by default a BOS.

    Every tokenizer class of transformers that reads SentencePiece's files for decoders, or Mistral's, puts BOS in front
    and no EOS at the end.
    """
    ends = {"bos": settings.raw.get("add_bos_token", True), "eos": settings.raw.get("add_eos_token", False)}
    bos, eos = (strings.get(f"{name}_token") if ends[name] else None for name in ("bos", "eos"))
    added = {token.content for token in settings.added.values()}
    missing = [token for token in (bos, eos) if token and token not in added and tokenizer.token_to_id(token) is None]
    if missing:
        raise ConvertError(f"the tokenizer of {path} has no token {shown(missing[0])}: correct {SETTINGS_FILE}")
    add_tokens(tokenizer, settings, normalized=False)
    set_text_flags(tokenizer, flags)
    add_around(tokenizer, bos, eos)
    return tokenizer.to_str()
