"""Translates schema constraints into C++ expressions for ``generate_cpp.py``. Uses only the standard library."""

import ast

from trtllm_lite.plugins.schema import Schema

OPERATORS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Mod: "%",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def symbols_of(schema: Schema) -> list[str]:
    """The symbols of shapes, then those used only in ``below``; a symbol's position is its number in C++."""
    extents = [extent for argument in schema.inputs + schema.outputs for extent in argument.shape]
    extents += [argument.below for argument in schema.inputs if argument.below is not None]
    return list(dict.fromkeys(extent for extent in extents if isinstance(extent, str)))


class ConstraintToCpp:
    """Translates one constraint; any construct or name that is not allowed is a ``ValueError``."""

    def __init__(self, schema: Schema, text: str) -> None:
        self.text = text
        self.context = f"{schema.folder}: constraint {text!r}"
        self.symbols = symbols_of(schema)
        self.attributes = {a.name: index for index, a in enumerate(schema.attributes) if a.type == "int"}
        self.symbol_mask = 0
        tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
            raise ValueError(f"{self.context}: expected one comparison")
        left, right = self._expression(tree.left), self._expression(tree.comparators[0])
        self.cpp = f"{left} {OPERATORS[type(tree.ops[0])]} {right}"

    def _expression(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=int(value)):
                return str(value)
            case ast.Name(id=name) if name in self.attributes:
                return f"attributes[{self.attributes[name]}].i"
            case ast.Name(id=name) if name in self.symbols:
                self.symbol_mask |= 1 << self.symbols.index(name)
                return f"extents[{self.symbols.index(name)}]"
            case ast.BinOp(left=left, op=ast.Mod(), right=right) if self._is_positive(right):
                return f"({self._expression(left)} % {self._expression(right)})"
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() as operator, right=right):
                return f"({self._expression(left)} {OPERATORS[type(operator)]} {self._expression(right)})"
        raise ValueError(f"{self.context}: {ast.unparse(node)!r} is not allowed")

    def _is_positive(self, divisor: ast.expr) -> bool:
        """Whether ``divisor`` is surely positive: extents are at least 1, but an attribute could be 0."""
        match divisor:
            case ast.Constant(value=int(value)):
                return value > 0
            case ast.Name(id=name):
                return name in self.symbols and name not in self.attributes
        return False
