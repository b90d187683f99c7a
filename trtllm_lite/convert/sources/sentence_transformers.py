"""Reads the files of sentence-transformers about an encoder: the pooling of a text, and the longest text.

``modules.json`` lists modules in order: the transformer, a pooling whose folder has a config.json, and perhaps a
normalisation; ``sentence_bert_config.json`` has the transformer's settings, and ``config_sentence_transformers.json``
the prompt that comes before texts. Source: sentence_transformers/models/Transformer.py, Pooling.py and Normalize.py,
and SentenceTransformer.py, up to version 6. A model without these files gives the mean, as sentence-transformers does.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_lite.common.foreign_files import read_foreign
from trtllm_lite.common.vocabulary import MAX_JSON_BYTES
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.metadata.ignored import IgnoredKeys
from trtllm_lite.convert.metadata.sentence_transformers import MODEL_FILE, MODULE, TRANSFORMER_FILES
from trtllm_lite.convert.sources.json_file import read_json
from trtllm_lite.convert.sources.source import Embeddings
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.network.pooling import Pooling

MODULES_FILE = "modules.json"
_POOLING_FILES = "*_Pooling/config.json"
FILES = (MODULES_FILE, *(f"{table.name}.json" for table in (*TRANSFORMER_FILES, MODEL_FILE)), _POOLING_FILES)
"""Patterns of the files that are read."""
_MODE = "pooling_mode"
_MODES = {"mean": False, "cls": True}  # whether the mode takes the first row
_OLD_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}  # flags of versions before 6
_WITH_PROMPT = "include_prompt"
_NEUTRAL = ("word_embedding_dimension", "embedding_dimension", _WITH_PROMPT)


@dataclass(frozen=True)
class EmbeddingFiles:
    """The content of the files in the model directory ``path``, by name, without the keys that are ignored.

    They are read for every model; :func:`read_embeddings` checks them against each other for encoders only.
    """

    path: Path
    contents: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, path: Path, ignored: IgnoredKeys) -> "EmbeddingFiles":
        """Raises ConvertError for a damaged file."""
        names = [f"{table.name}.json" for table in (*TRANSFORMER_FILES, MODEL_FILE)]
        names += [str(file.relative_to(path)) for file in sorted(path.glob(_POOLING_FILES))]
        found = {name: read_json(path / name) for name in names if (path / name).is_file()}
        return cls(path, {name: ignored.without(values, _prefix(name)) for name, values in found.items()})


def _prefix(name: str) -> str:
    """The prefix of the keys of a file in messages; for a pooling's config.json it is the folder."""
    folder = Path(name).parent.name
    return folder or Path(name).stem


def read_embeddings(files: EmbeddingFiles) -> Embeddings:
    """Interpret ``files``. Raises ConvertError for an unknown module and for unsupported settings."""
    path = files.path
    if not (path / MODULES_FILE).is_file():
        return Embeddings()
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
    if modules[0].get("path"):
        raise ConvertError(
            f"{path / MODULES_FILE} has the transformer at {shown(modules[0]['path'])}: expected it in the model's "
            "own directory; pass that folder as --model_dir to go without the other modules"
        )
    config = files.contents.get(f"{folder}/config.json")
    if config is None:
        config = read_json(path / folder / "config.json", required=True)
    pooling = Pooling(_takes_first(path / folder / "config.json", config), len(kinds) == 3)
    return Embeddings(pooling, _read_max_seq_length(files), _read_prompt(files, config.get(_WITH_PROMPT, True)))


def _read_modules(path: Path) -> list[dict[str, Any]]:
    try:
        modules = json.loads(read_foreign(path, MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ConvertError(f"expected {path} to be JSON, but: {shown(error)}: download it again") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ConvertError(f"expected {path} to be a list of modules: download it again")
    for module in modules:
        MODULE.check(path, module)
    return modules


def _takes_first(path: Path, config: dict[str, Any]) -> bool:
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


def _read_max_seq_length(files: EmbeddingFiles) -> int | None:
    table = next((table for table in TRANSFORMER_FILES if f"{table.name}.json" in files.contents), TRANSFORMER_FILES[0])
    path = files.path / f"{table.name}.json"
    values = files.contents.get(path.name, {})
    table.check(path, values)
    fields = ConfigFields(values, f"{path}: ")
    fields.expect("do_lower_case", False)
    longest = fields.integer("max_seq_length") if fields.take("max_seq_length") is not None else None
    if fields.problems:
        raise ConvertError("\n  ".join(fields.problems))
    return longest


def _read_prompt(files: EmbeddingFiles, in_pooling: Any) -> str:
    """The prompt that sentence-transformers puts before a text if no other is requested; "" for none.

    Raises ConvertError for a prompt whose rows the pooling leaves out.
    """
    path = files.path / f"{MODEL_FILE.name}.json"
    values = files.contents.get(path.name, {})
    MODEL_FILE.check(path, values)
    name, prompts = values.get("default_prompt_name"), values.get("prompts") or {}
    if name is None:
        return ""
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    if not isinstance(prompt, str):
        raise ConvertError(f"{path} has no prompt of the default_prompt_name {shown(name)}: download it again")
    if prompt and in_pooling is not True:
        raise ConvertError(
            f"{path} puts the prompt {shown(prompt)} before every text, which the pooling leaves out ({_WITH_PROMPT} "
            f"{shown(in_pooling)}): that is not supported; to go without the prompt, pass --ignore_config_keys "
            f"{MODEL_FILE.name}.default_prompt_name (ignore_config_keys of LLM)"
        )
    return prompt
