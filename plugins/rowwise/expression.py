"""Programs of Rowwise: the words of the postfix notation, and their evaluation. Uses only the standard library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Value = TypeVar("Value")

# Number of values that an operation takes; program.h has the same words.
ARITY = {
    **dict.fromkeys(("add", "sub", "mul", "div"), 2),
    **dict.fromkeys(("neg", "tanh", "gelu", "gelu_tanh", "silu", "sigmoid", "relu", "exp", "sqrt", "reciprocal"), 1),
}
MAX_ROWS = MAX_VECTORS = 4  # operands x0 .. x3 and v0 .. v3 of the schema
MAX_CONSTANTS = 16
MAX_STEPS = 64  # words of a program
MAX_DEPTH = 8  # the most values on the stack


def program_of_activation(name: str) -> str:
    """The program that applies an activation of Linear to each element."""
    return "x0 relu x0 mul" if name == "relu2" else f"x0 {name}"


def max_depth(words: Sequence[str]) -> int:
    """The most values on the stack at a time. Raises ValueError if ``words`` are not one expression."""
    depth = most = 0
    for word in words:
        taken = ARITY.get(word, 0)
        if depth < taken:
            raise ValueError(f"{word} takes {taken} values, found {depth} before it in {' '.join(words)!r}")
        depth += 1 - taken
        most = max(most, depth)
    if depth != 1:
        raise ValueError(f"{' '.join(words)!r} leaves {depth} values, expected 1")
    return most


def evaluate(program: str, operand: Callable[[str], Value], functions: Mapping[str, Callable[..., Value]]) -> Value:
    """The value of ``program``. ``operand`` maps x0, v0, c0 and so on to values, ``functions`` names to operations."""
    words = program.split(" ")
    max_depth(words)
    stack: list[Value] = []
    for word in words:
        taken = ARITY.get(word, 0)
        arguments = stack[len(stack) - taken :]
        del stack[len(stack) - taken :]
        stack.append(functions[word](*arguments) if taken else operand(word))
    return stack[0]
