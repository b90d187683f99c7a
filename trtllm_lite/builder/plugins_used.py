"""Finds which operators of a fused network are of other packages."""

import onnx_ir as ir

from trtllm_lite.engine.manifest import PluginUse
from trtllm_lite.plugins.packages import OWN, PluginPackage
from trtllm_lite.plugins.schema import DOMAIN, all_schemas


def plugins_used(graph: ir.Graph) -> tuple[PluginUse, ...]:
    """The packages whose operators ``graph`` has, by name."""
    found: dict[PluginPackage, set[str]] = {}
    for name in {node.op_type for node in graph if node.domain == DOMAIN}:
        package = all_schemas()[name].package
        if package != OWN:
            found.setdefault(package, set()).add(name)
    used = (PluginUse(package.name, package.version, tuple(sorted(names))) for package, names in found.items())
    return tuple(sorted(used, key=lambda use: (use.package, use.operators)))
