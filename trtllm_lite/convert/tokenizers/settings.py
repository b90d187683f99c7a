"""Reads the files beside a tokenizer and applies their changes: added and special tokens, and flags.

The order in which files count is that of ``PreTrainedTokenizerBase._from_pretrained`` of transformers, and tokens are
added as its ``TokenizersBackend`` adds them. Where there is a tokenizer.json, transformers reads ``add_bos_token`` and
``add_eos_token`` in version 4, but not in version 5; here they count if tokenizer_config.json has them.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from trtllm_lite.convert.metadata.ignored import IgnoredKeys
from trtllm_lite.convert.metadata.tokenizer_config import (
    EXTRA_TOKENS,
    FLAGS,
    SPECIAL_TOKENS_MAP,
    TOKEN_KEYS,
    TOKENIZER_CONFIG,
)
from trtllm_lite.convert.sources.json_file import read_json
from trtllm_lite.convert.tokenizers.sentencepiece_tokenizer import put_around
from trtllm_lite.errors import ConvertError, shown

SETTINGS_FILE = f"{TOKENIZER_CONFIG.name}.json"
SPECIAL_TOKENS_FILE = f"{SPECIAL_TOKENS_MAP.name}.json"
ADDED_TOKENS_FILE = "added_tokens.json"
_DECLARED = "added_tokens_decoder"
_ROLES = "model_specific_special_tokens"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class TokenizerSettings:
    """The settings of a tokenizer; ``raw`` has the keys of tokenizer_config.json and special_tokens_map.json.

    ``named`` are special tokens by role (bos_token, …), ``extra`` special tokens without a role, ``added`` tokens by
    their number. With ``is_declared`` the added tokens come from tokenizer_config.json and override the tokenizer's
    own; without it they come from added_tokens.json and do not. ``path`` is the model's directory.
    """

    path: Path
    raw: dict[str, Any]
    named: dict[str, AddedToken]
    extra: list[AddedToken]
    added: dict[int, AddedToken]
    is_declared: bool

    @property
    def strings(self) -> dict[str, str]:
        """The texts of special tokens by role."""
        return {name: token.content for name, token in self.named.items()}


def read_settings(path: Path, ignored: IgnoredKeys) -> TokenizerSettings:
    """Read the files in the model directory ``path``. Raises ConvertError for malformed or unsupported values."""
    raw = ignored.without(read_json(path / SETTINGS_FILE), TOKENIZER_CONFIG.name)
    TOKENIZER_CONFIG.check(path / SETTINGS_FILE, raw)
    _check_flags(path / SETTINGS_FILE, raw)
    is_declared = raw.get(_DECLARED) is not None
    if not is_declared:
        special = ignored.without(read_json(path / SPECIAL_TOKENS_FILE), SPECIAL_TOKENS_MAP.name)
        SPECIAL_TOKENS_MAP.check(path / SPECIAL_TOKENS_FILE, special)
        raw |= special
    extra: Any = next((raw[key] for key in EXTRA_TOKENS if raw.get(key)), [])
    with _as_expected(path / SETTINGS_FILE, "special tokens of {} to be texts or objects"):
        roles = {**(extra if isinstance(extra, dict) else {}), **(raw.get(_ROLES) or {})}
        roles |= {key: value for key, value in raw.items() if re.fullmatch(TOKEN_KEYS, key)}
        named = {key: _special(value) for key, value in roles.items() if value is not None}
        others = [_special(value) for value in extra] if not isinstance(extra, dict) else []
    if is_declared:
        with _as_expected(path, "added tokens of {} to be objects by id"):
            added = {int(number): _token(entry) for number, entry in raw[_DECLARED].items()}
    else:
        names = {token.content for token in (*named.values(), *others)}
        file = path / ADDED_TOKENS_FILE
        with _as_expected(file, "added tokens of {} to be numbers by their texts"):
            numbers = ignored.without(read_json(file), file.stem)
            added = {_whole(number): _plain(text, text in names) for text, number in numbers.items()}
    return TokenizerSettings(path, raw, named, others, added, is_declared)


def _check_flags(file: Path, raw: dict[str, Any]) -> None:
    for key in FLAGS:
        if not isinstance(raw.get(key), bool | None):
            raise ConvertError(f"{key} of {file} is {shown(raw[key])}: expected true or false: correct the file")


@contextmanager
def _as_expected(path: Path, expected: str) -> Iterator[None]:
    """Turn exceptions that values of wrong types cause into a ConvertError."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConvertError(f"expected the {expected.format(path)}, but: {shown(error)}") from error


def _token(entry: Any) -> AddedToken:
    return AddedToken(entry["content"], **{name: entry[name] for name in _FLAGS if name in entry})


def _special(value: Any) -> AddedToken:
    return _plain(value, True) if isinstance(value, str) else _token({**value, "special": True})


def _plain(text: str, special: bool) -> AddedToken:
    return AddedToken(text, normalized=not special, special=special)


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise TypeError(f"{shown(number)} is not a whole number")
    return number


def add_tokens(tokenizer: Tokenizer, settings: TokenizerSettings, *, normalized: bool | None = None) -> bool:
    """Add the tokens of ``settings``, with ``normalized`` for that flag, if given; returns whether anything changed.

    Raises ConvertError for a token that cannot have the number that the files say.
    """
    known = tokenizer.get_added_tokens_decoder()
    names = {token.content for token in settings.named.values()}
    new = []
    for number, declared in sorted(settings.added.items()):
        flags = {"special": declared.special or declared.content in names}
        flags |= {} if normalized is None else {"normalized": normalized}
        token = AddedToken(**{**declared.__getstate__(), **flags})
        if repr(known.get(number)) == repr(token) or (number in known and not settings.is_declared):
            continue
        if number in known and known[number].content != token.content:
            raise _misnumbered(settings, token, number, f"which is {shown(known[number].content)} there")
        tokenizer.add_tokens([token])
        if (found := tokenizer.token_to_id(token.content)) != number:
            raise _misnumbered(settings, token, number, f"where that is not its number, {found}")
        new.append(token)
    found_texts = {token.content for token in (*known.values(), *new)}
    missing = {token.content: token for token in (*settings.named.values(), *settings.extra)}
    missing = {text: token for text, token in missing.items() if text not in found_texts}
    tokenizer.add_tokens(list(missing.values()))
    return bool(new or missing)


def _misnumbered(settings: TokenizerSettings, token: AddedToken, number: int, but: str) -> ConvertError:
    key = f"{TOKENIZER_CONFIG.name}.{_DECLARED}" if settings.is_declared else Path(ADDED_TOKENS_FILE).stem
    return ConvertError(
        f"{settings.path} adds the token {shown(token.content)} as number {number} to a tokenizer {but}: create "
        "tokenizer.json with `AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)` of transformers, or pass "
        f"--ignore_config_keys {key}.{number if settings.is_declared else token.content} (ignore_config_keys of LLM)"
    )


def put_ends(tokenizer: Tokenizer, settings: TokenizerSettings) -> bool:
    """Put BOS and EOS around texts, or take them away, as ``settings`` say; returns whether anything changed."""
    plain, full = (tokenizer.encode("a", add_special_tokens=adds).ids for adds in (False, True))
    place = next((n for n in range(len(full)) if full[n : n + len(plain)] == plain), 0)
    before, behind = full[:place], full[place + len(plain) :]
    bos, eos = (tokenizer.token_to_id(settings.strings.get(f"{name}_token", "")) for name in ("bos", "eos"))
    start = _end(before, bos, settings.raw.get("add_bos_token"), first=True)
    end = _end(behind, eos, settings.raw.get("add_eos_token"), first=False)
    if (start, end) == (before, behind):
        return False
    put_around(tokenizer, *([str(tokenizer.id_to_token(number)) for number in ids] for ids in (start, end)))
    return True


def _end(found: list[int], token: int | None, wanted: Any, *, first: bool) -> list[int]:
    """Return ``found``, the tokens before or after a text, with or without ``token`` outermost."""
    outermost = found[:1] if first else found[-1:]
    if token is None or wanted is None or wanted == (outermost == [token]):
        return found
    if not wanted:
        return found[1:] if first else found[:-1]
    return [token, *found] if first else [*found, token]
