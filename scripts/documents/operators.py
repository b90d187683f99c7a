"""Writes the reference of the fused operators from the schemas of plugins/."""

from documents.plain_text import cell, escaped
from documents.variants import markdown
from trtllm_lite.plugins.packages import OWN
from trtllm_lite.plugins.schema import Argument, Schema, schemas_of


def operators_reference() -> str:
    """A section for each operator: its formula, inputs, outputs, attributes, constraints."""
    return "\n".join(_section(schema) for schema in sorted(schemas_of(OWN).values(), key=lambda schema: schema.name))


def _section(schema: Schema) -> str:
    rows = [_row(argument, "input") for argument in schema.inputs]
    rows += [_row(argument, "output") for argument in schema.outputs]
    meaning = _sentence(escaped(" ".join(schema.doc.split())))
    parts = [
        f"## {schema.name}\n",
        f"{meaning}{_collective(schema)} Sources: `plugins/{schema.folder}/`.\n",
        markdown(("", "name", "shape", "dtypes", "meaning"), rows) + "\n",
    ]
    if schema.attributes:
        attributes = [
            [f"`{entry.name}`", entry.type, " ".join(f"`{choice}`" for choice in entry.choices), cell(entry.doc)]
            for entry in schema.attributes
        ]
        parts.append(markdown(("attribute", "type", "choices", "meaning"), attributes) + "\n")
    if schema.constraints:
        parts.append("Constraints: " + ", ".join(f"`{text}`" for text in schema.constraints) + ".\n")
    return "\n".join(parts)


def _collective(schema: Schema) -> str:
    return " All ranks compute it together." if schema.collective else ""


def _row(argument: Argument, kind: str) -> list[str]:
    shape = ", ".join(map(str, argument.shape))
    notes = [argument.doc, "optional" if argument.optional else "", _storage(argument)]
    meaning = "; ".join(filter(None, notes))
    dtypes = " ".join(f"`{dtype}`" for dtype in argument.dtypes)
    return [kind, f"`{argument.name}`", f"`[{shape}]`", dtypes, cell(meaning)]


def _storage(argument: Argument) -> str:
    """The storage of an operand, unless it is a row-major tensor of its own."""
    if argument.alias:
        return f"updates `{argument.alias}` in place"
    layouts = [layout for layout in argument.layouts if layout != "row_major"]
    return f"layout {' or '.join(f'`{layout}`' for layout in layouts)}" if layouts else ""


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
