"""Makes the table of the hub's newest models from ``configs/hub_models.toml`` and the families."""

import importlib
import tomllib
from pathlib import Path

import trtllm_lite.convert.families as package
from documents.families import title_of
from documents.variants import markdown

MODELS = Path(__file__).resolve().parents[2] / "configs" / "hub_models.toml"
COLUMNS = ("model", "`architectures`", "read as", "why not", "named by")
# Titles of pages that name models, by the beginnings of their addresses.
SOURCES = {
    "https://github.com/huggingface/transformers/": "transformers",
    "https://github.com/vllm-project/vllm/": "vLLM",
    "https://github.com/vllm-project/recipes/": "vLLM's recipes",
}


def hub_models() -> list[dict[str, str]]:
    """The models of the list, with the keys that the file describes."""
    models: list[dict[str, str]] = tomllib.loads(MODELS.read_text())["model"]
    return models


def hub_models_table() -> str:
    """The number of models that convert, and a row for each."""
    models = hub_models()
    converting = sum("family" in model for model in models)
    rows = [[model["name"], _class(model), *_verdict(model), _source(model["source"])] for model in models]
    return f"Families read the classes of {converting} of these {len(models)} models.\n\n{markdown(COLUMNS, rows)}\n"


def _class(model: dict[str, str]) -> str:
    """The cell that names a model's class."""
    text = model.get("text_model_type")
    return model["architecture"] + (f" of {text}" if text else "")


def _verdict(model: dict[str, str]) -> tuple[str, str]:
    """The cells that say whether a model converts."""
    if "family" not in model:
        return "no", model["reason"]
    module = importlib.import_module(f"{package.__name__}.{model['family']}")
    return f"[{title_of(str(module.__doc__))}](families.md)", ""


def _source(address: str) -> str:
    (title,) = (title for beginning, title in SOURCES.items() if address.startswith(beginning))
    return f"[{title}]({address})"
