"""What the files of sentence-transformers say of an encoder: which row stands for a text, and how long texts may be.

``modules.json`` lists modules in order: the transformer, a pooling whose folder has a config.json, and perhaps a
normalisation; ``sentence_bert_config.json`` has the transformer's settings. Source: sentence_transformers/models/
Transformer.py, Pooling.py and Normalize.py, up to version 6. A model without these files gives the mean, as
sentence-transformers does.
"""

import json
from pathlib import Path
from typing import Any

from trtllm_lite.convert.config_fields import ConfigFields
from trtllm_lite.convert.json_file import read_json
from trtllm_lite.convert.source import Embeddings
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.foreign_files import read_foreign
from trtllm_lite.network.pooling import Pooling
from trtllm_lite.vocabulary import MAX_JSON_BYTES

_MODULES_FILE = "modules.json"
_TRANSFORMER_FILE = "sentence_bert_config.json"
FILES = (_MODULES_FILE, _TRANSFORMER_FILE, "*_Pooling/config.json")
"""Patterns of the files that are read."""
_MODE = "pooling_mode"
_MODES = {"mean": False, "cls": True}  # whether it takes the first row
_OLD_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}  # flags, before version 6
# What is embedded has no prompt put before it.
_NEUTRAL = ("word_embedding_dimension", "embedding_dimension", "include_prompt")


def read_embeddings(path: Path) -> Embeddings:
    """Read the files in the model directory ``path``.

    Raises ConvertError for a damaged file, an unknown module, and settings that are not supported.
    """
    if not (path / _MODULES_FILE).is_file():
        return Embeddings()
    modules = _read_modules(path / _MODULES_FILE)
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ConvertError(
            f"{path / _MODULES_FILE} has the modules {shown(', '.join(kinds))}: expected Transformer, Pooling and "
            "perhaps Normalize; others are not supported"
        )
    folder = modules[1].get("path")
    if not isinstance(folder, str) or not folder or Path(folder).name != folder:
        raise ConvertError(f"{path / _MODULES_FILE} has a pooling at {shown(folder)}: expected the name of a folder")
    pooling = Pooling(_takes_first(path / folder / "config.json"), len(kinds) == 3)
    return Embeddings(pooling, _read_max_seq_length(path / _TRANSFORMER_FILE))


def _read_modules(path: Path) -> list[dict[str, Any]]:
    try:
        modules = json.loads(read_foreign(path, MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ConvertError(f"expected {path} to be JSON, but: {shown(error)}: download it again") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ConvertError(f"expected {path} to be a list of modules: download it again")
    return modules


def _takes_first(path: Path) -> bool:
    config = read_json(path, required=True)
    others = {key: value for key, value in config.items() if value and key not in (*_NEUTRAL, _MODE)}
    wanted = [_OLD_MODES.get(key, key) if value is True else key for key, value in others.items()]
    mode = config.get(_MODE) or []
    wanted += map(str, mode if isinstance(mode, list) else [mode])
    if len(wanted) != 1 or wanted[0] not in _MODES:
        raise ConvertError(
            f"{path} asks for {shown(', '.join(wanted) or 'nothing')}: expected {' or '.join(_MODES)}; others are not "
            "supported"
        )
    return _MODES[wanted[0]]


def _read_max_seq_length(path: Path) -> int | None:
    fields = ConfigFields(read_json(path), f"{path}: ")
    fields.expect("do_lower_case", False)
    longest = fields.integer("max_seq_length") if fields.take("max_seq_length") is not None else None
    if fields.problems:
        raise ConvertError("\n  ".join(fields.problems))
    return longest
