"""The tokenizer of a Hugging Face directory: tokenizer.json, or else SentencePiece's tokenizer.model."""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from trtllm_lite.convert.chat_templates import NAMED_FILES, TEMPLATE_FILE, read_chat_templates
from trtllm_lite.convert.json_file import read_json
from trtllm_lite.convert.sentencepiece_file import SentencePieceFile, read_sentencepiece
from trtllm_lite.convert.sentencepiece_tokenizer import add_around, build_tokenizer
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.foreign_files import read_foreign
from trtllm_lite.library_errors import LibraryErrors
from trtllm_lite.vocabulary import MAX_TOKENIZER_BYTES

TOKENIZER_FILE = "tokenizer.json"
SENTENCEPIECE_FILE = "tokenizer.model"
SETTINGS_FILE = "tokenizer_config.json"
ADDED_TOKENS_FILE = "added_tokens.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
FILES = (
    *(TOKENIZER_FILE, SENTENCEPIECE_FILE, SETTINGS_FILE, ADDED_TOKENS_FILE, SPECIAL_TOKENS_FILE),
    *(TEMPLATE_FILE, NAMED_FILES),
)
"""Names and patterns of the files of a model directory that :func:`read_tokenizer` reads."""

_REMEDY = "download it again"
_FLAGS = ("single_word", "lstrip", "rstrip", "special")


def read_tokenizer(path: Path) -> tuple[str | None, dict[str, Any]]:
    """The text of tokenizer.json, None if the model has no tokenizer, and its chat templates and token strings.

    Raises ConvertError if a file is damaged or a SentencePiece model cannot be expressed.
    """
    raw = {**read_json(path / SPECIAL_TOKENS_FILE), **read_json(path / SETTINGS_FILE)}
    settings = {name: token for name in ("bos", "eos", "pad", "unk") if (token := _token(raw.get(f"{name}_token")))}
    if (path / TOKENIZER_FILE).is_file():
        text: str | None = _checked(read_foreign(path / TOKENIZER_FILE, MAX_TOKENIZER_BYTES), path / TOKENIZER_FILE)
    elif (path / SENTENCEPIECE_FILE).is_file():
        model = read_sentencepiece(path / SENTENCEPIECE_FILE)
        found = {"bos": model.bos, "eos": model.eos, "unk": model.unknown}
        settings = {name: token for name, token in found.items() if token} | settings
        with LibraryErrors(ConvertError, f"{path / SENTENCEPIECE_FILE} is not a tokenizer", _REMEDY):
            content = _from_sentencepiece(path, model, raw, settings).encode()
        text = _checked(content, path / SENTENCEPIECE_FILE)
    else:
        text = None
    config = {f"{name}_token": token for name, token in settings.items()}
    template = read_chat_templates(path, raw)
    return text, config if template is None else config | {"chat_template": template}


def _checked(content: bytes, path: Path) -> str:
    """The text of a tokenizer.json, made of the file ``path``. Raises ConvertError unless the library can read it."""
    with LibraryErrors(ConvertError, f"{path} is not a tokenizer", _REMEDY):
        text = content.decode()
        Tokenizer.from_str(text)
    return text


def _from_sentencepiece(path: Path, model: SentencePieceFile, raw: dict[str, Any], settings: dict[str, str]) -> str:
    """The tokenizer of a SentencePiece model, with the tokens that the directory adds, and BOS unless told otherwise.

    Every tokenizer class of transformers that reads such files for decoders puts BOS in front and no EOS at the end.
    """
    tokenizer = build_tokenizer(model.vocabulary)
    for number, token in sorted(_added_tokens(path, raw).items()):
        if tokenizer.token_to_id(token.content) is None and number == tokenizer.get_vocab_size():
            tokenizer.add_tokens([token])
        elif tokenizer.token_to_id(token.content) == number:
            tokenizer.add_tokens([token])  # how it is found in text changes, its id does not
        else:
            raise ConvertError(
                f"{path} adds the token {shown(token.content)} as number {number} to a tokenizer where that is not the "
                f"next one ({tokenizer.get_vocab_size()}): create tokenizer.json with "
                "`AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)` of transformers"
            )
    bos = settings.get("bos") if raw.get("add_bos_token", True) else None
    eos = settings.get("eos") if raw.get("add_eos_token", False) else None
    missing = [token for token in (bos, eos) if token is not None and tokenizer.token_to_id(token) is None]
    if missing:
        raise ConvertError(f"the tokenizer of {path} has no token {shown(missing[0])}: correct {SETTINGS_FILE}")
    add_around(tokenizer, bos, eos)
    return tokenizer.to_str()


def _added_tokens(path: Path, raw: dict[str, Any]) -> dict[int, AddedToken]:
    """Tokens beyond the SentencePiece model by id: those of tokenizer_config.json, else those of added_tokens.json."""
    declared = raw.get("added_tokens_decoder")
    if declared is None:
        names = {token for value in raw.values() for token in _tokens(value)}
        declared = {
            number: {"content": token, "special": token in names}
            for token, number in read_json(path / ADDED_TOKENS_FILE).items()
        }
    try:
        return {
            int(number): AddedToken(
                entry["content"], normalized=False, **{name: entry[name] for name in _FLAGS if name in entry}
            )
            for number, entry in declared.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConvertError(f"expected the added tokens of {path} to be objects by id, but: {shown(error)}") from error


def _tokens(value: Any) -> list[str]:
    """The token strings of one setting: a token, or a list of them."""
    return [token for item in (value if isinstance(value, list) else [value]) if (token := _token(item))]


def _token(value: Any) -> str | None:
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None
