"""Makes the table of model families from the families themselves and the shapes in ``configs/models``."""

import importlib
import json
import pkgutil
from collections import defaultdict
from pathlib import Path

import numpy as np

import trtllm_lite.convert.families as package
from documents.variants import markdown
from trtllm_lite.convert.family import Family
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.convert.sources.text_model import as_text_model

SHAPES = Path(__file__).resolve().parents[2] / "configs" / "models"
COLUMNS = ("family", "`architectures`", "GGUF", "published shapes that tests map", "computes the same as, on weights")
# References for a family's logits, if they are more than transformers with random weights.
RANDOM = "transformers, random"
COMPARED = {
    "bert": f"{RANDOM}, and all-MiniLM-L6-v2",
    "llama": f"{RANDOM}, and SmolLM2-135M",
    "qwen2": f"{RANDOM}, and Qwen2.5-Coder-0.5B",
    "gemma3": f"{RANDOM}, and Gemma 3 270M",
    "internlm2": "Llama of transformers, random, its rows reordered",
    "internlm3": "Llama of transformers, random",
    "mimo": "Qwen2 of transformers, and the layer that drafts in torch, random",
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe"), f"{RANDOM}, and the layer that drafts in torch"),
    "eagle3": "the paper in torch, random",
}


def families_table() -> str:
    """A row for each family; a new family needs no change here."""
    shapes = _shapes()
    rows = []
    for module in pkgutil.iter_modules(package.__path__):
        found = importlib.import_module(f"{package.__name__}.{module.name}")
        family: Family = found.FAMILY
        names = [shape for architecture in family.architectures for shape in shapes[architecture]]
        gguf = ", ".join(family.gguf.architectures) if family.gguf else "–"
        architectures = ", ".join(family.all_architectures)
        compared = COMPARED.get(family.name, RANDOM)
        rows.append([title_of(str(found.__doc__)), architectures, gguf, ", ".join(names) or "–", compared])
    return markdown(COLUMNS, rows) + "\n"


def title_of(docstring: str) -> str:
    """The name of a family: its file's docstring up to the description."""
    return docstring.partition(" (")[0].partition(":")[0]


def _shapes() -> dict[str, list[str]]:
    """The names of the shapes of each architecture; multimodal architectures have those of their text models."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SHAPES.glob("*.json")):
        source = Source(path.name, json.loads(path.read_text()), {}, {}, np.zeros, None, {})
        found[as_text_model(source).config["architectures"][0]].append(path.stem)
    return found
