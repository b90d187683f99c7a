"""Generates C++ from the numbers of the schema: for the host, and for kernels of GPUs."""

from trtllm_lite.request_fields.draws import NUMBERS
from trtllm_lite.request_fields.field import Number

_HEADER = "// Generated from trtllm_lite/request_fields.\n#pragma once\n\n"


def numbers_header() -> str:
    """``sample/numbers.cuh``: the struct that SamplingParams and the record of a GPU's slot begin with."""
    fields = "".join(
        f"  {_type(number)} {name} = {_literal(number, number.off)};  // {number.doc}\n"
        for name, number in NUMBERS.items()
    )
    return (
        f"{_HEADER}namespace tl {{\n\n// What requests tell the samplers of both devices.\n"
        f"struct SamplingNumbers {{\n{fields}}};\n\n}}  // namespace tl\n"
    )


def rules_header() -> str:
    """Make ``sampling/number_rules.h``: the values that each number may have."""
    visits = "".join(f"  visit(&SamplingNumbers::{name}, {_rule(name, number)});\n" for name, number in NUMBERS.items())
    return (
        f'{_HEADER}#include <optional>\n\n#include "sample/numbers.cuh"\n\nnamespace tl {{\n\n'
        "// A number lies from `low` to `high`. `off` changes nothing; -1 means the same if `minus_one_is_off`. With\n"
        "// `or_zero`, 0 is valid, too, and numbers between 0 and `low` become 0. A number that `cuts` leaves tokens\n"
        "// out of a draw.\n"
        "template <class T>\nstruct NumberRule {\n  const char* name;\n  T off, low;\n  std::optional<T> high;\n"
        "  bool minus_one_is_off, or_zero, cuts;\n  const char* remedy;\n};\n\n"
        "// Calls visit(member, rule) for each number; numbers that cut come in the order in which they do so.\n"
        "template <class Visit>\nvoid visit_numbers(const Visit& visit) {\n"
        f"{visits}}}\n\n}}  // namespace tl\n"
    )


def _rule(name: str, number: Number) -> str:
    high = "std::nullopt" if number.high is None else _literal(number, number.high)
    flags = ", ".join(str(flag).lower() for flag in (number.minus_one_is_off, number.or_zero, number.cuts))
    bounds = f"{_literal(number, number.off)}, {_literal(number, number.low)}, {high}"
    return f'NumberRule<{_type(number)}>{{"{name}", {bounds}, {flags}, "{number.remedy}"}}'


def _type(number: Number) -> str:
    return "int" if number.whole else "float"


def _literal(number: Number, value: float) -> str:
    return str(int(value)) if number.whole else f"{float(value)!r}f"
