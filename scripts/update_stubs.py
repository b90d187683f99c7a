"""Writes the stubs of the C++ extensions from their bindings, by nanobind's generator, and has ruff format them.

Build the extensions first, with ``TRTLLM_LITE_TESTING`` as ``scripts/test.sh`` does; ``scripts/lint.sh`` installs ruff.
"""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from nanobind.stubgen import ReplacePattern, StubGen, load_pattern_file

from trtllm_lite.request_fields.draws import NUMBERS

PACKAGE = Path(__file__).parents[1] / "trtllm_lite"
PATTERNS = PACKAGE / "csrc" / "bindings" / "stubs.pattern"
STUBS = {
    "trtllm_lite._core": PACKAGE / "_core" / "__init__.pyi",
    "trtllm_lite._core.sampling": PACKAGE / "_core" / "sampling.pyi",
    "trtllm_lite._testing": PACKAGE / "_testing.pyi",
}


def stubs() -> dict[Path, str]:
    """The text of each stub. Raises ValueError if a pattern is of nothing that the extensions have."""
    # These follow from the schema of requests, for which the patterns have __getattr__.
    numbers = re.compile(rf"\.sampling\.SamplingParams\.(?:{'|'.join(NUMBERS)})$")
    patterns = [ReplacePattern(numbers, [], 0), *load_pattern_file(str(PATTERNS))]
    texts = {path: _stub(module, patterns) for module, path in STUBS.items()}
    if unused := [pattern.query.pattern for pattern in patterns if not pattern.matches]:
        raise ValueError(f"expected patterns of names that the extensions have, found {unused}: see {PATTERNS}")
    return texts


def _stub(name: str, patterns: list[ReplacePattern]) -> str:
    import_module(name.rpartition(".")[0])
    module = import_module(name)
    generator = StubGen(module, patterns=patterns)
    generator.put(module)
    return generator.get()


def main() -> None:
    for path, text in stubs().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", *STUBS.values()], check=True)


if __name__ == "__main__":
    main()
