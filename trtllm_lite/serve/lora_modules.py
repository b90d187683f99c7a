"""Reads ``--lora_modules`` and ``--lora_root`` of ``serve``: which adapters belong to which engine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.llm import LLM
from trtllm_lite.serve.served_engine import ModelSettings

_JSON = '{"name": "NAME", "path": "DIR", "base_model_name": "MODEL"}'


class _Module(NamedTuple):
    name: str
    path: str
    base: str | None = None


def give_adapters(loaded: list[tuple[LLM, ModelSettings]], modules: tuple[str, ...], lora_root: Path | None) -> None:
    """Put the adapters into the settings of the engines that take them.

    Raises ArgumentError for a path that is no directory, or if it is unclear which engine an adapter belongs to.
    """
    takers = [row for row, (llm, _) in enumerate(loaded) if llm.generates and llm.session.adapters is not None]
    given = [name for name, value in (("lora_modules", modules), ("lora_root", lora_root)) if value]
    if given and not takers:
        raise ArgumentError(
            f"{given[0]} is given, and no engine takes adapters: build one with --max_lora_rank, or pass "
            "--max_lora_rank here with a model that is not an engine"
        )
    if lora_root is not None and not lora_root.is_dir():
        raise ArgumentError(f"lora_root is {shown(str(lora_root))}: expected a directory")
    for module in map(_parsed, modules):
        row = _engine_of(module, loaded, takers)
        llm, settings = loaded[row]
        loaded[row] = llm, replace(settings, adapters=(*settings.adapters, (module.name, module.path)))


def _engine_of(module: _Module, loaded: list[tuple[LLM, ModelSettings]], takers: list[int]) -> int:
    if module.base is not None:
        rows = [row for row in takers if module.base in loaded[row][1].names]
        if not rows:
            raise ArgumentError(
                f"base_model_name of {shown(module.name)} is {shown(module.base)}: expected the name of an engine that "
                "takes adapters"
            )
        return rows[0]
    if len(takers) > 1:
        raise ArgumentError(
            f"lora_modules has {shown(module.name)}, and several engines take adapters: say which it belongs to, as "
            f"{_JSON}"
        )
    return takers[0]


def _parsed(module: str) -> _Module:
    """Parse ``NAME=DIR``, or vLLM's JSON object."""
    if module.startswith("{"):
        try:
            found = json.loads(module)
            return _Module(str(found["name"]), str(found["path"]), found.get("base_model_name"))
        except (ValueError, KeyError) as error:
            raise ArgumentError(f"lora_modules is {shown(module)}: expected NAME=DIR, or {_JSON}") from error
    name, equals, path = module.partition("=")
    if not (name and equals and path):
        raise ArgumentError(f"lora_modules is {shown(module)}: expected NAME=DIR, or {_JSON}")
    return _Module(name, path)
