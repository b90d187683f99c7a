"""The engine files of a directory, one for each rank."""

from pathlib import Path
from typing import Any

from trtllm_lite.common.printable import one_line
from trtllm_lite.engine.format import ENGINE_FILE, engine_file
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import EngineError, shown


def open_ranks(native: Any, directory: Path) -> list[Any]:
    """Open a ``_core.Engine`` for each rank."""
    first = native.Engine(str(engine_path(directory, 0)))
    others = range(1, Manifest.from_json(first.manifest).mapping.num_ranks)
    return [first, *(native.Engine(str(engine_path(directory, rank))) for rank in others)]


def engine_path(directory: Path, rank: int) -> Path:
    """The path of the engine file of ``rank``. Raises EngineError, which says what ``directory`` has instead."""
    path = directory / engine_file(rank)
    if path.is_file():
        return path
    if not directory.exists():
        raise EngineError(f"engine directory {directory} does not exist: make it with `trtllm-lite build`")
    if not directory.is_dir():
        raise EngineError(f"{directory} is a file, expected a directory that holds {path.name}: pass its directory")
    if (directory / "network.onnx").is_file():
        raise EngineError(
            f"{directory} is a checkpoint, expected an engine: build it first with "
            f"`trtllm-lite build --checkpoint_dir {directory} --output_dir ENGINE`"
        )
    if rank and (directory / ENGINE_FILE).is_file():
        raise EngineError(f"{directory} has {ENGINE_FILE}, but no {path.name}: copy the whole directory, or build it")
    found = one_line(", ".join(sorted(entry.name for entry in directory.iterdir())[:8])) or "nothing"
    raise EngineError(
        f"{directory} holds no {path.name} (found: {found}): make an engine with `trtllm-lite convert`, then "
        "`trtllm-lite build`"
    )


def check_adapters(manifest: Manifest) -> None:
    """Raise EngineError if an engine that takes adapters has several ranks or is a drafting head."""
    problems = {
        f"it is one of {manifest.mapping.num_ranks} ranks (--tp_size, --pp_size)": manifest.mapping.num_ranks > 1,
        "it is a head or a layer that drafts": manifest.module.drafts,
    }
    for problem, found in problems.items():
        if found and manifest.lora is not None:
            raise EngineError(f"the engine takes adapters, and {problem}: build it again without --max_lora_rank")


def check_end_ids(manifest: Manifest) -> None:
    """Raise EngineError if an end-of-sequence token of the model is not in its vocabulary."""
    model = manifest.model
    outside = [token for token in model.eos_token_ids if not 0 <= token < model.vocab_size]
    if outside:
        raise EngineError(
            f"the engine's end-of-sequence token {shown(outside[0])} is outside its vocabulary of {model.vocab_size} "
            "tokens: correct eos_token_id in the model's config.json, then convert and build again"
        )
