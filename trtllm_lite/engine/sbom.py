"""Writes a software bill of materials of an engine, in CycloneDX's form, beside the engine.

The bill has no time stamp and no serial number, so that the same build gives the same bytes.
https://cyclonedx.org/docs/1.6/json/ describes the fields.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_lite.common.foreign_files import sha256_of
from trtllm_lite.common.printable import one_line
from trtllm_lite.engine.format import ENGINE_FILE, PRODUCER
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.engine.provenance import Material

if TYPE_CHECKING:
    from cyclonedx.model.component import Component, ComponentType

SBOM_FILE = "sbom.json"
_WEIGHTS = (".gguf", ".onnx", ".safetensors")
_OWN_LICENCE = "Apache-2.0"


@dataclass(frozen=True)
class Package:
    """A package whose code took part in a build; ``licence`` is None if the package does not state it."""

    name: str
    version: str
    licence: str | None
    on_pypi: bool = True


@dataclass(frozen=True)
class Bill:
    """The parts of an engine.

    ``code`` is trtllm_lite itself. ``origin`` is the hub's repository of the model, None for a local model; ``model``
    are its files; ``licence`` is None if they do not state it. ``data`` are other files, such as a timing cache.
    """

    code: Material
    origin: Material | None
    model: Sequence[Material]
    licence: str | None
    data: Sequence[Material]
    packages: Sequence[Package]

    @property
    def materials(self) -> list[Material]:
        """All parts except packages."""
        return [self.code, *([] if self.origin is None else [self.origin]), *self.model, *self.data]


def write_sbom(directory: Path, manifest: Manifest, bill: Bill) -> None:
    """Write the bill of the engine in ``directory``. Raises OSError."""
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    digest = sha256_of(directory / ENGINE_FILE)
    engine = Component(
        name=manifest.model.architecture,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="engine",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        properties=[
            Property(name="trtllm_lite:target", value=", ".join(manifest.target.archs) or manifest.target.kind),
            Property(name="trtllm_lite:qformat", value=manifest.qformat),
        ],
    )
    if bill.origin is not None:
        engine.properties.add(Property(name="trtllm_lite:model", value=bill.origin.uri))
    bom = Bom(metadata=BomMetaData(component=engine), components=_components(bill))
    bom.register_dependency(engine, bom.components)
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["serialNumber"], document["metadata"]["timestamp"]
    (directory / SBOM_FILE).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def _components(bill: Bill) -> "list[Component]":
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    licences = LicenseFactory()
    own = Component(
        name="trtllm_lite",
        version=PRODUCER.split()[1],
        type=ComponentType.APPLICATION,
        bom_ref="trtllm_lite",
        licenses=[licences.make_from_string(_OWN_LICENCE)],
        properties=[Property(name=f"trtllm_lite:{name}", value=value) for name, value in bill.code.digest.items()],
    )
    packages = [
        Component(
            name=package.name,
            version=package.version,
            bom_ref=f"package:{package.name}",
            purl=PackageURL("pypi", name=package.name, version=package.version) if package.on_pypi else None,
            licenses=[licences.make_from_string(one_line(package.licence))] if package.licence else [],
        )
        for package in bill.packages
    ]
    weights, rest = ComponentType.MACHINE_LEARNING_MODEL, ComponentType.FILE
    model = [_file(item, weights if item.name.endswith(_WEIGHTS) else rest, bill.licence) for item in bill.model]
    return [own, *packages, *model, *(_file(item, ComponentType.DATA, None) for item in bill.data)]


def _file(material: Material, kind: "ComponentType", licence: str | None) -> "Component":
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component

    digest = material.digest["sha256"]
    return Component(
        name=material.name,
        type=kind,
        bom_ref=f"sha256:{digest}/{material.name}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        licenses=[LicenseFactory().make_from_string(one_line(licence))] if licence else [],
    )
