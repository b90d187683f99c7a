"""Chooses from the cases that schemathesis makes of a description those that try something new."""

from collections.abc import Hashable, Mapping
from typing import Any

import msgspec
from schemathesis.generation.meta import CoveragePhaseData, CoverageScenario
from schemathesis.hooks import HookContext
from schemathesis.schemas import Case

_OTHER_NAME = "x-schemathesis-additional"  # stands in pointers for a property that the schema does not define


class DistinctCases:
    """Leaves out repeated values of a wrong type among the fields of an operation that have the same type.

    Each field still has one value of a wrong type, and each type one value of each wrong type.
    """

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._description = description
        self._seen: set[Hashable] = set()

    def is_new(self, context: HookContext, case: Case) -> bool:
        """Whether no earlier case of the operation had this violation; always true if no value has a wrong type."""
        data = case.meta and case.meta.phase.data
        if not isinstance(data, CoveragePhaseData) or data.scenario is not CoverageScenario.INCORRECT_TYPE:
            return True
        pointer = [part for part in data.location.split("/") if part not in ("", _OTHER_NAME)]
        described = self._description["paths"][context.operation.path][context.operation.method]["requestBody"]
        wanted = msgspec.json.encode(self._schema_at(described["content"][case.media_type]["schema"], pointer))
        tried = {(context.operation.label, data.location, data.description)}
        tried.add((context.operation.label, wanted, type(_value_at(case.body, pointer))))
        is_new = not tried <= self._seen
        self._seen |= tried
        return is_new

    def _schema_at(self, schema: Any, pointer: list[str]) -> Any:
        for part in ["", *pointer]:
            if part:
                schema = schema[int(part)] if isinstance(schema, list) else schema[part]
            while isinstance(schema, dict) and "$ref" in schema:
                schema = self._description["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return schema


def _value_at(value: Any, pointer: list[str]) -> Any:
    """The value of a body to which a part of its schema applies."""
    for before, part in zip(["", *pointer], pointer, strict=False):
        if before == "properties":
            value = value[part]
        elif part == "items":
            value = value[0]
        elif part == "additionalProperties":
            value = next(iter(value.values()))
    return value
