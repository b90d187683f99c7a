"""Defines the tokenizer that is stored in the engine directory."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from trtllm_lite.common.library_errors import LibraryErrors
from trtllm_lite.common.printable import one_line
from trtllm_lite.common.vocabulary import PROMPT_SETTING
from trtllm_lite.errors import ArgumentError, EngineError, shown
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.text.chat import ChatTemplate
from trtllm_lite.runtime.text.content_formats import Message
from trtllm_lite.runtime.text.decoder_rules import decoder_rules
from trtllm_lite.runtime.text.spellings import Speller
from trtllm_lite.runtime.text.tokenizer_files import SETTINGS_FILE, TOKENIZER_FILE, read_checked, read_plain
from trtllm_lite.runtime.values import is_unicode

_SPECIAL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
_ENCODING = LibraryErrors(ArgumentError, "the tokenizer fails on this text", "pass token ids, or another text")
_DECODING = LibraryErrors(EngineError, "the tokenizer fails on its own tokens", "convert again")


class Tokenizer:
    """Converts text to token ids and back, and chat messages to text.

    ``settings`` is the content of tokenizer_config.json: special token strings, the chat template, and an encoder's
    prefix of every text. Raises EngineError for settings of other types.
    """

    def __init__(self, backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.chat_template = ChatTemplate.from_settings(settings)
        self._prompt = settings.get(PROMPT_SETTING, "")
        if not isinstance(self._prompt, str):
            raise EngineError(f"{PROMPT_SETTING} of {SETTINGS_FILE} is {shown(self._prompt)}: expected a text")

    @classmethod
    def from_dir(cls, directory: Path, checksums: dict[str, str], crc32c: Callable[[bytes], int]) -> "Tokenizer | None":
        """Read the tokenizer files of an engine and check them against the manifest's checksums (8 hex digits).

        The result is None if the engine was built without a tokenizer. Raises EngineError if a file is missing or
        differs.
        """
        contents = read_checked(directory, checksums, crc32c)
        return cls._parse(directory, contents) if TOKENIZER_FILE in contents else None

    @classmethod
    def from_files(cls, directory: Path) -> "Tokenizer":
        """Read the tokenizer of a checkpoint or an engine, unchecked. Raises EngineError for a bad or missing file."""
        paths = [directory / name for name in (TOKENIZER_FILE, SETTINGS_FILE) if (directory / name).exists()]
        if directory / TOKENIZER_FILE not in paths:
            raise EngineError(f"{directory} holds no {TOKENIZER_FILE}: pass a directory that does")
        return cls._parse(directory, {path.name: read_plain(path) for path in paths})

    @classmethod
    def from_text(cls, text: str, settings: dict[str, Any]) -> "Tokenizer":
        """Make the tokenizer from the text of a tokenizer.json."""
        return cls(tokenizers.Tokenizer.from_str(text), settings)

    @classmethod
    def _parse(cls, directory: Path, contents: Mapping[str, bytes]) -> "Tokenizer":
        with LibraryErrors(EngineError, f"{directory / TOKENIZER_FILE} is not a tokenizer", "convert again"):
            backend = tokenizers.Tokenizer.from_buffer(contents[TOKENIZER_FILE])
        try:
            settings = json.loads(contents.get(SETTINGS_FILE, b"{}"))
        except (ValueError, RecursionError) as error:
            raise EngineError(
                f"{directory / SETTINGS_FILE} is not JSON ({one_line(str(error))}): convert again"
            ) from error
        if not isinstance(settings, dict):
            raise EngineError(
                f"{directory / SETTINGS_FILE} holds {shown(settings)}: expected an object with the tokenizer's "
                "settings; convert again"
            )
        return cls(backend, settings)

    @property
    def vocab_size(self) -> int:
        """The number of known tokens, added ones included; ids are below it, unless some numbers are unused."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def max_token_chars(self) -> int:
        """Characters of the longest token: a text of more than n times as many characters has more than n tokens."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)), default=1)

    @cached_property
    def added_tokens(self) -> dict[int, str]:
        """Names by id of the added tokens, special or not, which are found in texts before any other tokens."""
        return {number: token.content for number, token in self._backend.get_added_tokens_decoder().items()}

    @cached_property
    def token_bytes(self) -> Any:
        """The ``_core.TokenBytes`` that gives the text of each token, made when the first text is needed.

        Raises EngineError if the tokenizer's decoder is unknown.
        """
        added = self._backend.get_added_tokens_decoder()
        decoder = self._backend.decoder
        return core().TokenBytes(
            self._backend.get_vocab(with_added_tokens=True),
            self.added_tokens,
            [number for number, token in added.items() if token.special],
            **vars(decoder_rules(None if decoder is None else json.loads(decoder.__getstate__()))),
        )

    def special_token_in(self, text: str) -> str | None:
        """The first special token whose name occurs in ``text`` and would be encoded as that token, or None."""
        found = None if self._special is None else self._special.search(text)
        return None if found is None else found.group()

    @cached_property
    def _special(self) -> "re.Pattern[str] | None":
        added = self._backend.get_added_tokens_decoder().values()
        spelled = sorted((token.content for token in added if token.special and token.content), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, spelled))) if spelled else None

    @cached_property
    def speller(self) -> Speller:
        """The finder of spellings of texts, made when it is first needed, as large vocabularies take a moment."""
        with _DECODING:
            return Speller(
                self._backend.get_vocab_size(with_added_tokens=True),
                lambda text: self.encode(text, add_special_tokens=False),
                lambda rows: self._backend.decode_batch(rows, skip_special_tokens=True),
            )

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """Names and ids of the special tokens."""
        added = self._backend.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if token.special}

    def json_with_special(self, token_ids: Sequence[int]) -> str:
        """The text of a tokenizer.json in which the tokens ``token_ids`` are special."""
        content = json.loads(self._backend.to_str())
        others = [token for token in content["added_tokens"] if token["id"] not in token_ids]
        special = [
            {**_SPECIAL, "id": token, "content": self._backend.id_to_token(token)}
            for token in token_ids
            if self._backend.id_to_token(token) is not None
        ]
        return json.dumps({**content, "added_tokens": [*others, *special]})

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``; ``add_special_tokens`` adds the tokens around a prompt (often BOS).

        With ``add_special_tokens`` an encoder's default prompt comes first, as in sentence-transformers.

        Raises ArgumentError if ``text`` holds lone surrogates, which stand for bytes that were not valid UTF-8.
        """
        _check_unicode(text)
        text = self._prompt + text if add_special_tokens else text
        with _ENCODING:
            # The library's batch functions, unlike encode and decode, let other threads run meanwhile.
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def encode_pair(self, first: str, second: str, second_text_offset: int) -> list[int]:
        """Token ids of a pair of texts, with the special tokens around them.

        ``second_text_offset`` is added to ids that the tokenizer gives the type of second texts. Raises the errors of
        :meth:`encode`.
        """
        for text in (first, second):
            _check_unicode(text)
        with _ENCODING:
            (encoding,) = self._backend.encode_batch_fast([(first, second)], add_special_tokens=True)
        typed = zip(encoding.ids, encoding.type_ids, strict=True)
        return [token + second_text_offset if of_second else token for token, of_second in typed]

    def apply_chat_template(
        self,
        conversation: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **arguments: Any,
    ) -> str | list[int]:
        """The prompt of a conversation, as token ids or (``tokenize=False``) as text, as in transformers.

        ``chat_template`` is the name of one of the model's templates. Raises the errors of :meth:`ChatTemplate.render`,
        and ArgumentError if the model has no template.
        """
        if self.chat_template is None:
            raise ArgumentError("the model has no chat template: pass the prompt as text")
        text = self.chat_template.render(
            conversation,
            template=chat_template,
            tools=tools,
            arguments={**arguments, "add_generation_prompt": add_generation_prompt},
            continue_final_message=continue_final_message,
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def spell(self, piece: bytes) -> list[int]:
        """Token ids of a piece of text; empty if it is not whole characters."""
        try:
            return self.encode(piece.decode(), add_special_tokens=False)
        except UnicodeDecodeError:
            return []

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ``token_ids`` without special tokens; broken UTF-8 becomes U+FFFD."""
        return self._decode(token_ids, skip_special_tokens=True)

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """Like :meth:`decode`, but including the names of special tokens."""
        return self._decode(token_ids, skip_special_tokens=False)

    def _decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        with _DECODING:
            (text,) = self._backend.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)
        return str(text)


def _check_unicode(text: str) -> None:
    if not is_unicode(text):
        raise ArgumentError("the prompt is not valid Unicode text: expected UTF-8, found other bytes; re-encode it")
