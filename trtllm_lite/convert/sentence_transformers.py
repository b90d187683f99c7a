"""What the files of sentence-transformers say of an encoder: which row stands for a text, and whether it is normalised.

``modules.json`` lists modules in order: the transformer, a pooling whose folder has a config.json, and perhaps a
normalisation. Source: sentence_transformers/models/Pooling.py and Normalize.py. A model without these files gives the
mean, as sentence-transformers does.
"""

import json
from pathlib import Path
from typing import Any

from trtllm_lite.convert.json_file import read_json
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.network.pooling import Pooling

MODULES_FILE = "modules.json"
POOLING_FILES = "*_Pooling/config.json"
_MODES = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}  # whether it takes the first row
_NEUTRAL = ("word_embedding_dimension", "include_prompt")  # what is embedded has no prompt put before it


def read_pooling(path: Path) -> Pooling:
    """The pooling of the model directory ``path``. Raises ConvertError for a damaged file or an unknown module."""
    if not (path / MODULES_FILE).is_file():
        return Pooling()
    modules = _read_modules(path / MODULES_FILE)
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ConvertError(
            f"{path / MODULES_FILE} has the modules {shown(', '.join(kinds))}: expected Transformer, Pooling and "
            "perhaps Normalize; others are not supported"
        )
    folder = modules[1].get("path")
    if not isinstance(folder, str) or not folder or Path(folder).name != folder:
        raise ConvertError(f"{path / MODULES_FILE} has a pooling at {shown(folder)}: expected the name of a folder")
    return Pooling(_takes_first(path / folder / "config.json"), len(kinds) == 3)


def _read_modules(path: Path) -> list[dict[str, Any]]:
    try:
        modules = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConvertError(f"expected {path} to be JSON, but: {shown(error)}: download it again") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ConvertError(f"expected {path} to be a list of modules: download it again")
    return modules


def _takes_first(path: Path) -> bool:
    config = read_json(path, required=True)
    wanted = [key for key, value in config.items() if value and key not in _NEUTRAL]
    if len(wanted) != 1 or wanted[0] not in _MODES or config[wanted[0]] is not True:
        raise ConvertError(
            f"{path} asks for {shown(', '.join(wanted) or 'nothing')}: expected one of {' and '.join(_MODES)}; others "
            "are not supported"
        )
    return _MODES[wanted[0]]
