"""Turns kernels into C++ for the host: each asm statement becomes calls of the functions in ``ptx.h``."""

import re
from collections.abc import Iterator

_ASM = re.compile(r"\basm\b(?:\s+volatile\b)?\s*\(")
_SHARED = re.compile(r"\bextern\s+__shared__\s+__align__\((\d+)\)\s+(\w+)\s+(\w+)\[\];")
_STATIC_SHARED = re.compile(r"\b__shared__\s+(\w+)\s+(\w+)(\[[^\]]+\])?;")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_REGISTERS = {"r": "emulated::u32", "l": "emulated::u64", "f": "float", "h": "emulated::u16"}  # constraint -> type
_DECLARED = {"pred": "bool", "b64": "emulated::u64", "u32": "emulated::u32", "f16": "emulated::u16"}
_OPENING, _CLOSING = "([{", ")]}"


def translate(preprocessed: str) -> str:
    """C++ in which no asm statement and no ``__shared__`` variable is left.

    ``preprocessed`` has no macros left in its asm statements. A PTX instruction that ``ptx.h`` lacks becomes a call of
    a function that is not declared; asm of another form raises ValueError.
    """
    parts, at = [], 0
    for match in _ASM.finditer(preprocessed):
        end = _closing(preprocessed, match.end() - 1)
        parts += [preprocessed[at : match.start()], _statement(preprocessed[match.end() : end])]
        at = end + 1
    text = "".join([*parts, preprocessed[at:]])
    text = _SHARED.sub(r"\2* const \3 = emulated::dynamic_shared<\2>(\1);", text)
    return _STATIC_SHARED.sub(r"auto& \2 = emulated::static_shared<\1\3>([] {});", text)


def _walk(text: str, start: int = 0) -> Iterator[tuple[int, str, int]]:
    """Yield position, character and bracket depth (a bracket counts as inside) of ``text``, outside of strings."""
    depth, at = 0, start
    while at < len(text):
        if text[at] == '"':
            match = _STRING.match(text, at)
            if match is None:
                raise ValueError(f"unterminated string: {text[at : at + 60]}")
            at = match.end()
            continue
        depth += text[at] in _OPENING
        yield at, text[at], depth
        depth -= text[at] in _CLOSING
        at += 1


def _closing(text: str, start: int) -> int:
    return next(at for at, char, depth in _walk(text, start) if char in _CLOSING and depth == 1)


def _split(text: str, separator: str) -> list[str]:
    """The stripped parts between separators that are outside of brackets and strings."""
    cuts = [at for at, char, depth in _walk(text) if char == separator and depth == 0]
    edges = zip([-1, *cuts], [*cuts, len(text)], strict=True)
    return [text[begin + 1 : end].strip() for begin, end in edges]


def _statement(asm: str) -> str:
    """The C++ block that replaces an asm statement ``template : outputs : inputs : clobbers``."""
    template, outputs, inputs, _ = (*_split(asm, ":"), "", "", "")[:4]
    ptx = "".join(_STRING.findall(template)).replace("\\n", "\n")
    lines = [f"__label__ {name};" for name in re.findall(r"^\s*(\w+):(?!:)", ptx, re.MULTILINE)]
    operands = [*(_split(outputs, ",") if outputs else []), *(_split(inputs, ",") if inputs else [])]
    for number, operand in enumerate(operands):
        match = _STRING.match(operand)
        if match is None:
            raise ValueError(f"an operand without a constraint: {operand}")
        constraint, value = match[1], operand[match.end() :].strip()
        if constraint[0] in "=+":
            lines.append(f"auto& _{number} = emulated::ptx::written<{_type(constraint[1:])}>{value};")
        elif constraint == "n":
            lines.append(f"const auto _{number} = {value};")
        else:
            kind = _type(constraint)
            lines.append(f"const {kind} _{number} = ({kind}){value};")  # the value may be a pointer
    # The statement stays on one line, so that the compiler's messages keep their line numbers.
    return "{ " + " ".join(lines + _body(ptx)) + " }"


def _type(constraint: str) -> str:
    kind = _REGISTERS.get(constraint)
    if kind is None:
        raise ValueError(f"asm operand of constraint {constraint!r}")
    return kind


def _body(ptx: str) -> list[str]:
    """Translate scopes, labels, declarations and instructions, in order."""
    lines, at = [], 0
    while at < len(ptx):
        rest = ptx[at:]
        if (blank := re.match(r"\s+", rest)) is not None:
            at += blank.end()
        elif rest[0] in "{}":
            lines.append(rest[0])
            at += 1
        elif (label := re.match(r"(\w+):(?!:)", rest)) is not None:
            lines.append(f"{label[1]}:;")
            at += label.end()
        else:
            end = rest.index(";")
            lines.append(_instruction(rest[:end].strip()))
            at += end + 1
    return lines


def _instruction(text: str) -> str:
    guard = re.match(r"@(!?)(\w+)\s+", text)
    if guard is not None:
        return f"if ({guard[1]}{guard[2]}) {_instruction(text[guard.end() :])}"
    opcode, _, rest = text.partition(" ")
    if opcode == ".reg":
        kind, _, names = rest.strip().partition(" ")
        return f"{_DECLARED[kind[1:]]} {', '.join(f'{name.strip()}{{}}' for name in names.split(','))};"
    if opcode == "bra":
        return f"goto {rest.strip()};"
    operands = ", ".join(_operand(operand) for operand in _split(rest, ",") if operand)
    columns = re.search(r"\.m64n(\d+)(k\d+)\.", opcode)
    argument = f"<{columns[1]}>" if columns is not None else ""
    name = re.sub(r"[.:]+", "_", opcode.replace(columns[0], f".m64{columns[2]}.") if columns is not None else opcode)
    return f"emulated::ptx::{name}{argument}({operands});"


def _operand(text: str) -> str:
    if text[0] == "{":
        return f"emulated::ptx::group({', '.join(_operand(part) for part in _split(text[1:-1], ','))})"
    if text[0] == "[":
        return ", ".join(_operand(part) for part in _split(text[1:-1], ","))
    if text == "_":
        return "emulated::ptx::unused"
    if text.startswith("%%"):
        return f"emulated::ptx::{text[2:]}()"
    return text.replace("%", "_").removeprefix("_|")
