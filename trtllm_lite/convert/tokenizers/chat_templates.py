"""Reads the chat templates of a Hugging Face directory from the places where versions of transformers put them."""

from pathlib import Path
from typing import Any

from trtllm_lite.common.foreign_files import read_foreign
from trtllm_lite.common.vocabulary import MAX_JSON_BYTES
from trtllm_lite.errors import ConvertError, shown

TEMPLATE_FILE = "chat_template.jinja"
NAMED_FILES = "additional_chat_templates/*.jinja"
_DEFAULT = "default"


def read_chat_templates(path: Path, settings: dict[str, Any]) -> str | list[dict[str, str]] | None:
    """The chat template of the model in ``path``, or its templates as [{"name": …, "template": …}], sorted by name.

    ``settings`` is the content of tokenizer_config.json. A file takes precedence over a template of the same name
    there, as in transformers. None if there is no template. Raises ConvertError if one is malformed.
    """
    templates = _in_settings(path, settings.get("chat_template"))
    files = {_DEFAULT: path / TEMPLATE_FILE} | {file.stem: file for file in sorted(path.glob(NAMED_FILES))}
    templates |= {name: _read(file) for name, file in files.items() if file.is_file()}
    return as_setting(templates)


def as_setting(templates: dict[str, str]) -> str | list[dict[str, str]] | None:
    """``templates``, by name, in the form of tokenizer_config.json: a list, or the default template if it is alone."""
    if set(templates) <= {_DEFAULT}:
        return templates.get(_DEFAULT)
    return [{"name": name, "template": template} for name, template in sorted(templates.items())]


def _in_settings(path: Path, setting: Any) -> dict[str, str]:
    if setting is None:
        return {}
    entries = setting if isinstance(setting, list) else [{"name": _DEFAULT, "template": setting}]
    if not all(isinstance(entry, dict) and _is_text(entry.get("name"), entry.get("template")) for entry in entries):
        raise ConvertError(
            f"chat_template in tokenizer_config.json of {path} is {shown(setting)}: expected a template, or a list of "
            '{"name": …, "template": …}; download it again'
        )
    return {entry["name"]: entry["template"] for entry in entries}


def _is_text(*values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def _read(file: Path) -> str:
    try:
        return read_foreign(file, MAX_JSON_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ConvertError(f"expected {file} to be UTF-8, but: {error}: download it again") from error
