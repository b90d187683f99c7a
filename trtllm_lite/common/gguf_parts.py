"""Lists the files of a model in GGUF format, which llama.cpp's gguf-split splits into several."""

import re
from pathlib import Path

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def parts_of(path: Path) -> list[Path]:
    """All files of the model to which ``path`` belongs, by their names; only ``path`` if it is not split.

    The first file has the metadata. The files need not exist.
    """
    match = _PART.fullmatch(path.name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        return [path]
    return [path.with_name(f"{match[1]}-{number:05}-of-{match[3]}.gguf") for number in range(1, int(match[3]) + 1)]
