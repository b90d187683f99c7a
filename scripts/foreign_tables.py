"""Makes tables of the names of other engines and their meaning here, from trtllm_lite/foreign_names."""

from collections.abc import Mapping

from variant_tables import markdown

from trtllm_lite.foreign_names import calls, commands, imports, serving
from trtllm_lite.foreign_names.entry import Foreign

# Tables by the name of the part of a page.
FOREIGN: Mapping[str, Mapping[str, Foreign]] = {
    "commands": commands.COMMANDS,
    "convert": commands.CONVERT,
    "build": commands.BUILD,
    "generate": commands.GENERATE,
    "serve": serving.SERVE,
    "bench": serving.BENCH_SERVE,
    "llm": calls.LLM,
    "sampling": calls.SAMPLING_PARAMS,
    "cache": calls.KV_CACHE_CONFIG,
    "from-dir": calls.FROM_DIR,
    "runner": calls.GENERATE,
    "classes": imports.CLASSES,
}


def foreign_table(name: str) -> str:
    """A row for each name: its replacement, or the remedy."""
    prefix = "--" if name in ("convert", "build", "generate", "serve", "bench") else ""
    rows = [[f"`{prefix}{word}`", _meaning(entry), _accepted(entry)] for word, entry in sorted(FOREIGN[name].items())]
    return markdown(("name", "here", "accepted"), rows) + "\n"


def _meaning(entry: Foreign) -> str:
    text = f"`{entry.becomes}`" if entry.becomes else entry.remedy
    return " ".join(text.split()).replace("|", "\\|")


def _accepted(entry: Foreign) -> str:
    """The accepted values."""
    if entry.becomes:
        return "yes"
    if entry.harmless:
        return "yes, changes nothing"
    values = [str(value) for value in entry.neutral if value != ""]
    return ", ".join(f"`{value}`" for value in dict.fromkeys(values))
