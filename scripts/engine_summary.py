"""Prints the result of a build job as Markdown: ``engine_summary.py ENGINE``, for an engine with provenance and SBOM.

It reads the files beside the engine, and ENGINE.json, which `trtllm-lite inspect --json` wrote. It needs only the
standard library.
"""

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Print the summary of the engine that the command line names."""
    engine = Path(sys.argv[1])
    found, statement, bill = (
        json.loads(path.read_text())
        for path in (Path(f"{engine}.json"), engine / "provenance.json", engine / "sbom.json")
    )
    subjects = {item["name"]: item["digest"]["sha256"] for item in statement["subject"]}
    rows = {
        "model": f"{found['model']['architecture']}, {found['model']['num_parameters']:,} parameters",
        "target": found["target"],
        "weights of linear layers": found["qformat"],
        "limits": ", ".join(f"{name} {value}" for name, value in found["limits"].items()),
        **_accuracy(found["accuracy"], statement),
        "memory": ", ".join(f"{name} {size:,} bytes" for name, size in found["memory"].items()),
        "bytes": _bytes(statement),
        "sha256": subjects["rank0.engine"],
        "licence of the model": ", ".join(sorted(_licences(bill["components"]))) or "its files do not say",
    }
    print(f"## {_cell(engine.name)}\n\n| | |\n| --- | --- |")
    for name, value in rows.items():
        print(f"| {name} | {_cell(value)} |")
    print("\n| made of | digests |\n| --- | --- |")
    for item in statement["predicate"]["buildDefinition"]["resolvedDependencies"]:
        print(f"| {_cell(item['name'])} | {_cell(', '.join(map(' '.join, item['digest'].items())))} |")
    print()


def _bytes(statement: Any) -> str:
    """The result of the second build, unless the build file disables it."""
    checks = statement["predicate"]["buildDefinition"]["externalParameters"].get("checks", {})
    again = checks.get("reproducible", True)
    return "the same when it was built again with empty caches" if again else "not built again (reproducible: false)"


def _accuracy(measured: dict[str, Any] | None, statement: Any) -> dict[str, str]:
    """The measured accuracy, which the manifest records."""
    if measured is None:
        return {"accuracy": "not measured, because the build file has no max_accuracy_loss"}
    perplexity, reference = measured["perplexity"], measured["reference_perplexity"]
    limit = statement["predicate"]["buildDefinition"]["externalParameters"]["build"]["max_accuracy_loss"]
    return {
        "perplexity": f"{perplexity:.3f}, {perplexity / reference - 1:+.2%} of {reference:.3f} (at most +{limit}%)",
        "KL divergence": f"{measured['kl_divergence']:.5f} nats per token",
        "same first choice": f"{measured['top1_agreement']:.2%} of {measured['num_tokens']:,} tokens",
        "measured on": measured["dataset"],
    }


def _licences(components: list[Any]) -> set[str]:
    """The licences of the model's weights in the SBOM."""
    weights = [item for item in components if item["type"] == "machine-learning-model"]
    entries = [entry for item in weights for entry in item.get("licenses", [])]
    return {entry.get("expression") or entry["license"].get("id") or entry["license"]["name"] for entry in entries}


def _cell(text: object) -> str:
    """Text of a cell, escaped so that none of it is Markdown or HTML."""
    plain = "".join(character if character.isprintable() else " " for character in str(text))
    return "".join(f"&#{ord(character)};" if character in "|<>&`*[]\\!" else character for character in plain)


if __name__ == "__main__":
    main()
