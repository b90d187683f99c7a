"""The stubs of the extensions are those that scripts/update_stubs.py makes of their bindings."""

import ast
import sys
from pathlib import Path

import pytest

import trtllm_lite

PACKAGE = Path(trtllm_lite.__file__).parent
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    """The text of each stub, as it is made now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(ROOT / "scripts")])
        from update_stubs import stubs

        return stubs()


def _without_form(text: str) -> str:
    """What a stub says, without its line breaks and the indentation of its docstrings, which a formatter may change."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = " ".join(node.value.split())
    return ast.unparse(tree)


def test_stubs_are_what_the_bindings_say(made: dict[Path, str]) -> None:
    stale = [path.name for path, text in made.items() if _without_form(path.read_text()) != _without_form(text)]
    assert stale == [], "run python scripts/update_stubs.py"
    assert set(made) == set(PACKAGE.rglob("*.pyi"))


def test_signatures_are_those_that_nanobind_derives_from_functions() -> None:
    """A signature that a binding writes out would be text, which nanobind compares with nothing."""
    sources = [path for suffix in ("*.cc", "*.h") for path in (PACKAGE / "csrc").rglob(suffix)]
    assert [path.name for path in sources if "nb::sig(" in path.read_text()] == []
    assert any("nb::arg(" in path.read_text() for path in sources)
