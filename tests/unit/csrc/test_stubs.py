"""The stubs of the extensions, which are written by hand for their docs and types, name what the extensions have."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import trtllm_lite
from trtllm_lite import _core, _testing
from trtllm_lite.request_fields.draws import NUMBERS

PACKAGE = Path(trtllm_lite.__file__).parent


def _public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def _is_real(node: ast.stmt) -> bool:
    """Whether a declaration of a stub exists in the extension, unlike a Protocol of what callers pass."""
    return not (isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases))


def _declared(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """The public names that a module or class of a stub declares, with their declarations: several are overloads."""
    found: dict[str, list[ast.stmt]] = {}
    for node in filter(_is_real, body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = [node]
        elif isinstance(node, ast.Assign):
            found |= {target.id: [node] for target in node.targets if isinstance(target, ast.Name)}
    return {name: nodes for name, nodes in found.items() if name in _public(found)}


def _parameters(signature: str) -> list[str]:
    """The names of the parameters in a signature by nanobind, whose types need not be Python."""
    text, depth, names = signature[signature.index("(") + 1 : signature.rindex(") ->")], 0, [""]
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            names.append("")
        else:
            names[-1] += character
    return [found[0] for name in names if (found := re.match(r"\w+", name.strip())) and found[0] != "self"]


def _arguments(node: ast.FunctionDef) -> list[ast.arg]:
    """The arguments of a function of a stub, but for self."""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [argument for argument in arguments if argument.arg != "self"]


def _differences(body: list[ast.stmt], found: Any, where: str) -> Iterator[str]:
    names, own = _declared(body), _public(vars(found))
    if found is _core.sampling.SamplingParams:
        own -= set(NUMBERS)  # the stub declares these by __getattr__, as a schema lists them
    yield from (f"{where}.{name} is not in the stub" for name in own - set(names))
    yield from (f"{where}.{name} is in the stub alone" for name in set(names) - own)
    for name in own & set(names):
        nodes, value = names[name], getattr(found, name)
        if isinstance(nodes[0], ast.ClassDef):
            yield from _differences(nodes[0].body, value, f"{where}.{name}")
        elif isinstance(nodes[0], ast.FunctionDef) and hasattr(value, "__nb_signature__"):
            declared = {tuple(argument.arg for argument in _arguments(node)) for node in nodes}
            overloads = {tuple(_parameters(signature)) for signature, *_ in value.__nb_signature__}
            if declared != overloads:
                yield f"{where}.{name} has the parameters {declared} in the stub, and {overloads}"


@pytest.mark.parametrize("module", [_core, _testing], ids=["core", "testing"])
def test_stubs_name_what_the_extensions_have(module: ModuleType) -> None:
    stub = ast.parse((PACKAGE / f"{module.__name__.rpartition('.')[2]}.pyi").read_text())
    assert sorted(_differences(stub.body, module, module.__name__)) == []
