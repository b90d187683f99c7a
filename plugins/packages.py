"""Finds packages with operators of their own, by the entry points of the group ``trtllm_lite.plugins``.

The value of such an entry point is a Python package whose folders are operators, as the folders of this package are.
Only installed packages that declare one are ever loaded: an engine names a package, never a file.

Standard library only: ``schema.py`` imports this module.
"""

import hashlib
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from trtllm_lite.errors import BuildError, EngineError

GROUP = "trtllm_lite.plugins"
LIBRARY = "_cpu"  # the module whose file is a package's library of CPU kernels


@dataclass(frozen=True)
class PluginPackage:
    """Operators that are installed together: ``name`` and ``version`` are pip's.

    ``module`` is the Python package that holds the operators' folders, ``root`` its own folder.
    """

    name: str
    version: str
    module: str
    root: Path

    @cached_property
    def schemas(self) -> tuple[Path, ...]:
        """The ``schema.toml`` of each operator, in alphabetical order of folder."""
        return tuple(sorted(self.root.glob("*/schema.toml")))

    @property
    def digest(self) -> str:
        """A digest of all schemas: kernels of the library are compiled against them."""
        texts = (f"{path.parent.name}\0{path.read_text(encoding='utf-8')}\0" for path in self.schemas)
        return hashlib.sha256("".join(texts).encode()).hexdigest()

    @property
    def library(self) -> Path | None:
        """The shared library of the CPU kernels; None if the package has none."""
        spec = find_spec(f"{self.module}.{LIBRARY}")
        return None if spec is None or spec.origin is None else Path(spec.origin)


OWN = PluginPackage("trtllm_lite", "", "trtllm_lite.plugins", Path(__file__).parent)


@cache
def other_packages() -> tuple[PluginPackage, ...]:
    """The installed packages of the group, by name. Raises BuildError if one is not as it declares."""
    found = {_package(entry) for entry in entry_points(group=GROUP)}
    return tuple(sorted(found, key=lambda package: (package.name, package.module)))


def _package(entry: EntryPoint) -> PluginPackage:
    assert entry.dist is not None
    try:
        spec = find_spec(entry.value)
    except ImportError as error:
        raise _wrong(entry, f"that module does not import ({error})") from error
    places = None if spec is None else spec.submodule_search_locations
    if not places:
        raise _wrong(entry, "there is no such package")
    package = PluginPackage(entry.dist.name, entry.dist.version, entry.value, Path(next(iter(places))))
    if not package.schemas:
        raise _wrong(entry, f"{package.root} has no folder with a schema.toml")
    return package


def _wrong(entry: EntryPoint, problem: str) -> BuildError:
    assert entry.dist is not None
    return BuildError(
        f"the package {entry.dist.name} declares operators in {entry.value}, but {problem}: install it again, or "
        f"uninstall it (docs/contributing/out-of-tree.md)"
    )


@cache
def _packages_by_folder() -> dict[str, PluginPackage]:
    return {path.parent.name: package for package in other_packages() for path in package.schemas}


def source_path(name: str) -> Path:
    """The file ``name``, such as ``rms_norm/cuda.cuh``, of an operator of any package, or of what operators share."""
    return _packages_by_folder().get(name.partition("/")[0], OWN).root / name


def load_kernels(name: str) -> set[str]:
    """Let engines of this process call the CPU kernels of the installed package ``name``, if it declares operators.

    Returns the operators that have such kernels. Raises EngineError if the package has no kernels for CPUs, or they are
    of another version. The C++ runtime calls this for the packages that an engine needs.
    """
    from trtllm_lite import _core

    declared = {entry for entry in entry_points(group=GROUP) if entry.dist is not None and entry.dist.name == name}
    found: set[str] = set()
    for package in {_package(entry) for entry in declared}:
        library = package.library
        if library is None:
            raise EngineError(
                f"the package {name} {package.version} has no kernels for CPUs ({package.module}.{LIBRARY}): build the "
                "engine for a GPU, or install the package with its cpu.cc compiled (docs/contributing/out-of-tree.md)"
            )
        found |= set(_core.load_plugin(str(library), name, package.version, package.digest))
    return found
