"""Sources in Hugging Face's layout: config.json, *.safetensors, tokenizer.json; from a directory or from the hub."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trtllm_lite.convert.safetensors_file import SafetensorsFile
from trtllm_lite.convert.source import Source
from trtllm_lite.errors import ConvertError

_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_DOWNLOADS = ["*.safetensors", "*.safetensors.index.json", "*.jinja"]
_JSON_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
]
_TOKEN_KEYS = ("bos_token", "eos_token", "pad_token", "unk_token")


def open_directory(path: Path) -> Source:
    """Open a model directory; ConvertError if a file is missing, damaged, or weights are only there as pickles."""
    config = _read_json(path / "config.json", required=True)
    files = [SafetensorsFile(shard) for shard in _find_shards(path)]
    owners = {name: file for file in files for name in file.tensors}
    repeated = [name for file in files for name in file.tensors if owners[name] is not file]
    if repeated:
        raise ConvertError(
            f"expected every tensor in one file of {path}, found in several: {', '.join(sorted(repeated))}"
        )
    return Source(
        description=str(path),
        config=config,
        generation=_read_json(path / "generation_config.json"),
        tensors={name: file.tensors[name] for name, file in owners.items()},
        read=lambda name: owners[name].read(name),
        tokenizer=_read_tokenizer(path / "tokenizer.json"),
        tokenizer_config=_read_tokenizer_config(path),
    )


def download(hub_id: str) -> Path:
    """Fetch a model (safetensors and JSON, never code or pickles) into Hugging Face's cache; returns its folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=_DOWNLOADS + _JSON_FILES))
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConvertError(
            f"{hub_id!r} is neither a local directory or .gguf file nor a model that could be fetched from the Hugging "
            f"Face hub ({reason}): check the spelling, the network and your access (`hf auth login`), "
            "or pass a local path"
        ) from error


def _find_shards(path: Path) -> list[Path]:
    """The weight files: those of the index, else model.safetensors, else the only *.safetensors there is."""
    if (path / _INDEX).is_file():
        return _indexed_shards(path)
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    found = sorted(path.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        names = ", ".join(file.name for file in found)
        raise ConvertError(
            f"expected {path} to hold model.safetensors or {_INDEX}, found {names}: keep one model's files"
        )
    pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
    if pickles:
        raise ConvertError(
            f"expected safetensors weights in {path}, found only pickles ({', '.join(pickles)}), which can run code "
            "when they are read: convert them with `save_pretrained(DIR, safe_serialization=True)` of transformers"
        )
    raise ConvertError(f"expected safetensors weights in {path}, found none")


def _indexed_shards(path: Path) -> list[Path]:
    weight_map = _read_json(path / _INDEX, required=True).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ConvertError(f"expected {path / _INDEX} to map tensors to files under 'weight_map': download it again")
    names = sorted(set(weight_map.values()))
    outside = [name for name in names if Path(name).name != name]
    missing = [name for name in names if name not in outside and not (path / name).is_file()]
    if outside or missing:
        raise ConvertError(
            f"expected all files of {_INDEX} in {path}, found missing: {', '.join(outside + missing)}: "
            "download the model again"
        )
    return [path / name for name in names]


def _read_json(path: Path, required: bool = False) -> dict[str, Any]:
    """A JSON object; {} if the file is absent and not ``required``."""
    if not path.is_file():
        if required:
            raise ConvertError(f"expected {path} in a Hugging Face model directory, found none: check --model_dir")
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"expected {path} to be JSON, but: {error}") from error
    if not isinstance(value, dict):
        raise ConvertError(f"expected {path} to be a JSON object, found a {type(value).__name__}")
    return value


def _read_tokenizer(path: Path) -> str:
    """The text of tokenizer.json, tried out."""
    if not path.is_file():
        raise ConvertError(
            f"expected a tokenizer.json in {path.parent}, found none: create it with "
            "`AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)` of transformers"
        )
    try:
        text = path.read_text(encoding="utf-8")
        Tokenizer.from_str(text)
    except OSError:
        raise
    except Exception as error:  # tokenizers raises plain Exception
        raise ConvertError(f"expected {path} to be a tokenizer, but: {error}: download it again") from error
    return text


def _read_tokenizer_config(path: Path) -> dict[str, Any]:
    """The chat template, from wherever this version of transformers put it, and the special tokens as strings."""
    raw = {**_read_json(path / "special_tokens_map.json"), **_read_json(path / "tokenizer_config.json")}
    result: dict[str, Any] = {}
    for key in _TOKEN_KEYS:
        token = raw.get(key)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            result[key] = token
    template = raw.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    separate = path / "chat_template.jinja"
    if separate.is_file():
        template = separate.read_text(encoding="utf-8")
    if isinstance(template, str):
        result["chat_template"] = template
    return result
