"""Sources in Hugging Face's layout: config.json, *.safetensors and a tokenizer; from a directory or from the hub."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trtllm_lite.convert.family import architectures_of, find_family
from trtllm_lite.convert.fields.generation import generation_of
from trtllm_lite.convert.metadata.ignored import IgnoredKeys
from trtllm_lite.convert.nearest import unsupported
from trtllm_lite.convert.quantized import SETTINGS, as_blocks
from trtllm_lite.convert.sources.image_settings import FILES as IMAGE_FILES
from trtllm_lite.convert.sources.image_settings import read_image_settings
from trtllm_lite.convert.sources.json_file import read_json
from trtllm_lite.convert.sources.safetensors_file import SafetensorsFile
from trtllm_lite.convert.sources.sentence_transformers import FILES as EMBEDDING_FILES
from trtllm_lite.convert.sources.sentence_transformers import MODULES_FILE, EmbeddingFiles, read_embeddings
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.convert.sources.text_model import as_text_model, text_family
from trtllm_lite.convert.tokenizers.files import FILES as TOKENIZER_FILES
from trtllm_lite.convert.tokenizers.files import read_tokenizer
from trtllm_lite.errors import ConvertError, shown

_INDEX = "model.safetensors.index.json"
_MODELOPT = "hf_quant_config.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_GENERATION = "generation_config.json"
_CONFIGS = ["config.json", _GENERATION, _MODELOPT]
# Buffers of positions and types of tokens, which old versions of transformers saved; they follow from the config.
_INDEX_BUFFERS = re.compile(r"(.*\.)?embeddings\.(position_ids|token_type_ids)", re.DOTALL)
_CARD = "README.md"  # names the licence
_DOWNLOADS = ["*.safetensors", "*.safetensors.index.json", *_CONFIGS, *TOKENIZER_FILES, _CARD]
_DOWNLOADS += [*EMBEDDING_FILES, *IMAGE_FILES]
# Names of files that repeat the weights in their trainers' own format.
_OTHER_FORMS = ["original/*", "metal/*", "consolidated*.safetensors"]


def open_directory(path: Path, ignored: IgnoredKeys | None = None) -> Source:
    """Open a model directory, without the ``ignored`` keys of its files.

    Raises ConvertError if a file is missing or damaged or needs an unsupported feature, or if all weights are pickles.
    """
    _refuse_gguf(path)
    ignored = ignored or IgnoredKeys()
    config = _add_settings(path, read_json(path / "config.json", required=True))
    _check_architecture(path, config)
    files = [SafetensorsFile(shard) for shard in _find_shards(path)]
    owners = {name: file for file in files for name in file.tensors}
    repeated = [name for file in files for name in file.tensors if owners[name] is not file]
    if repeated:
        raise ConvertError(
            f"expected every tensor in one file of {path}, found in several: {', '.join(sorted(repeated))}: download "
            "the model again"
        )
    tokenizer, tokenizer_config = read_tokenizer(path, ignored)
    source = Source(
        description=str(path),
        config=config,
        generation=read_json(path / _GENERATION),
        tensors={name: file.tensors[name] for name, file in owners.items() if not _INDEX_BUFFERS.fullmatch(name)},
        read=lambda name: owners[name].read(name),
        tokenizer=tokenizer,
        tokenizer_config=tokenizer_config,
        embeddings=partial(read_embeddings, EmbeddingFiles.read(path, ignored)),
        embeds=(path / MODULES_FILE).is_file(),
        image_settings=partial(read_image_settings, path),
    )
    source = as_text_model(as_blocks(source))
    has_own = (path / _GENERATION).is_file()
    return source if has_own else replace(source, generation=generation_of(source.config))


def _refuse_gguf(path: Path) -> None:
    """Raise ConvertError for a directory whose only weights are GGUF files."""
    files = sorted(file.name for file in path.glob("*.gguf"))
    if files and not (path / "config.json").is_file():
        raise ConvertError(
            f"{path} is no Hugging Face model directory, which has a config.json; it holds {len(files)} GGUF files: "
            f"pass one of them as --model_dir, such as {path / files[0]}"
        )


def _add_settings(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return ``config`` with the quantization settings that older checkpoints of ModelOpt have in a separate file."""
    settings = read_json(path / _MODELOPT).get("quantization")
    if config.get(SETTINGS) or settings is None:
        return config
    if not isinstance(settings, dict):
        raise ConvertError(f"expected {path / _MODELOPT} to have settings under 'quantization': download it again")
    return {**config, SETTINGS: {**settings, "quant_method": "modelopt"}}


def download(hub_id: str, revision: str | None = None) -> Path:
    """Fetch a model (no code, no pickles) into Hugging Face's cache; returns its folder. Raises ConvertError."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        folder = Path(
            snapshot_download(hub_id, revision=revision, allow_patterns=_DOWNLOADS, ignore_patterns=_OTHER_FORMS)
        )
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        at = "" if revision is None else f" at revision {shown(revision)}"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConvertError(
            f"{shown(hub_id)} is neither a local directory or .gguf file nor a model that could be fetched from the "
            f"Hugging Face hub{at} ({reason}): check the spelling, the network and your access (`hf auth login`), "
            "or pass a local path"
        ) from error
    if not (folder / "config.json").is_file():
        raise ConvertError(
            f"{shown(hub_id)} has no config.json on the hub: if it has GGUF files, fetch one (`hf download "
            f"{hub_id} FILE`) and pass its path as --model_dir"
        )
    return folder


def hub_origin(model: Path) -> tuple[str, str] | None:
    """The hub id and the commit of a model in Hugging Face's cache; None for a model elsewhere.

    https://huggingface.co/docs/huggingface_hub/guides/manage-cache says how the cache is laid out.
    """
    repository, folder = model.parent.parent.name, model.parent.name
    if folder != "snapshots" or not repository.startswith("models--") or not re.fullmatch("[0-9a-f]{40}", model.name):
        return None
    return repository.removeprefix("models--").replace("--", "/"), model.name


def _check_architecture(path: Path, config: dict[str, Any]) -> None:
    """Raise ConvertError for a model of no known family, whatever else is wrong with its files."""
    architectures = architectures_of(config, str(path))
    if text_family(config, str(path)) is None and find_family(architectures) is None:
        raise unsupported(architectures, _bare_source(path, config))


def _bare_source(path: Path, config: dict[str, Any]) -> Source | None:
    """The tensors of a model with ``config`` alone, in blocks if a known method made them.

    None if they cannot be read.
    """
    try:
        files = [SafetensorsFile(shard) for shard in _find_shards(path)]
    except (ConvertError, OSError):
        return None
    owners = {name: file for file in files for name in file.tensors}
    tensors = {name: file.tensors[name] for name, file in owners.items()}
    source = Source(str(path), config, {}, tensors, lambda name: owners[name].read(name), None, {})
    try:
        return as_blocks(source)
    except ConvertError:
        return source


def _find_shards(path: Path) -> list[Path]:
    """Find the weight files: those in the index, else model.safetensors, else the only *.safetensors file."""
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
    raise ConvertError(f"expected safetensors weights in {path}, found none: download the model again")


def _indexed_shards(path: Path) -> list[Path]:
    weight_map = read_json(path / _INDEX, required=True).get("weight_map")
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
