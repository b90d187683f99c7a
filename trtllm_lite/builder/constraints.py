"""Evaluates the constraints of operator schemas (``half_dim * 2 == head_dim``) for one use of an operator."""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence

from trtllm_lite.plugins.schema import Argument, Schema

_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type, Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def broken_constraints(
    schema: Schema, shapes: Sequence[tuple[Argument, Sequence[int | str]]], attributes: Mapping[str, int | float | str]
) -> list[str]:
    """Return the constraints that do not hold, each with its values; constraints on dynamic extents are skipped."""
    names: dict[str, int | float] = {key: value for key, value in attributes.items() if not isinstance(value, str)}
    for argument, shape in shapes:
        names |= {
            symbol: extent
            for symbol, extent in zip(argument.shape, shape, strict=True)
            if isinstance(symbol, str) and isinstance(extent, int)
        }
    return broken_among(schema, names)


def broken_among(schema: Schema, names: Mapping[str, int | float], of: str | None = None) -> list[str]:
    """Return the constraints that do not hold for ``names``, each with its values; only those with the name ``of``.

    Constraints with other names are skipped.
    """
    broken = []
    for constraint in schema.constraints:
        comparison = ast.parse(constraint, mode="eval").body
        used = _names_in(comparison)
        is_meant = of is None or of in used
        if is_meant and all(name in names for name in used) and not _holds(comparison, names):
            broken.append(f"{constraint} ({', '.join(f'{name} is {names[name]}' for name in used)})")
    return broken


def implied_extents(schema: Schema, names: Mapping[str, int]) -> dict[str, int]:
    """The symbols' values by constraints ``symbol == expression``, where ``names`` has all names of the expression."""
    implied = {}
    for constraint in schema.constraints:
        match ast.parse(constraint, mode="eval").body:
            case ast.Compare(left=ast.Name(id=symbol), ops=[ast.Eq()], comparators=[expression]):
                if all(name in names for name in _names_in(expression)):
                    implied[symbol] = _value(expression, names)
    return implied


def _names_in(node: ast.expr) -> list[str]:
    return sorted({found.id for found in ast.walk(node) if isinstance(found, ast.Name)})


def _holds(node: ast.expr, names: Mapping[str, int | float]) -> bool:
    match node:
        case ast.Compare(left=left, ops=[comparison], comparators=[right]):
            return _COMPARISONS[type(comparison)](_value(left, names), _value(right, names))
    raise ValueError(f"{ast.unparse(node)!r} is not a comparison")


def _value(node: ast.expr, names: Mapping[str, int | float]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return int(names[name])
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
            return _OPERATORS[type(operation)](_value(left, names), _value(right, names))
    raise ValueError(f"{ast.unparse(node)!r} is not allowed in a constraint")
