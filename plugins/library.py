"""Compiles the CPU kernels of another package into its library, by setuptools.

The package's ``setup.py`` is ``setup(**plugin_library("package.plugins"))``: each ``cpu.cc`` in a folder of that module
is compiled once for each instruction set, as those of this package are, with the headers of ``trtllm_lite/include``.
"""

from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import Extension
from setuptools.command.build_ext import build_ext

from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.generate_cpp import Isa, library_source, schema_header
from trtllm_lite.plugins.packages import LIBRARY, PluginPackage
from trtllm_lite.plugins.schema import Schema, schemas_of

_FLAGS = ("-std=c++20", "-fvisibility=hidden", "-Wall", "-Wextra")


def plugin_library(module: str) -> dict[str, Any]:
    """Arguments of ``setuptools.setup`` that compile the kernels of the operators in ``module``."""
    library = Extension(f"{module}.{LIBRARY}", sources=[], language="c++", py_limited_api=True)
    tag = {"bdist_wheel": {"py_limited_api": "cp311"}}  # the library has nothing of Python's
    return {"ext_modules": [library], "cmdclass": {"build_ext": BuildKernels}, "options": tag}


def include_folder() -> Path:
    """The folder of the headers that kernels include. Raises BuildError if this trtllm_lite was installed without."""
    spec = find_spec("trtllm_lite._core")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "include"
    if folder is None or not (folder / "kernels.txt").is_file():
        raise BuildError(f"expected the headers of trtllm_lite in {folder}, found none: install trtllm_lite again")
    return folder


@dataclass(frozen=True)
class _Settings:
    """How kernels are compiled: ``kernels.txt``, which CMake writes."""

    flags: list[str]
    isas: list[Isa]

    @classmethod
    def read(cls) -> "_Settings":
        flags, *isas = (include_folder() / "kernels.txt").read_text().splitlines()
        return cls(flags.split(), [Isa.parse(isa) for isa in isas])


class BuildKernels(build_ext):
    """Compiles the kernels of a plugin's library, and links them."""

    def build_extension(self, ext: Extension) -> None:
        """Raises BuildError for operators that the library cannot have."""
        package, settings = self._package(ext), _Settings.read()
        schemas = [schema for schema in schemas_of(package).values() if _kernel(schema).is_file()]
        for schema in schemas:
            _check(schema)
        made = Path(self.build_temp) / package.module
        made.mkdir(parents=True, exist_ok=True)
        for schema in schemas:
            (made / f"{schema.folder}_schema.h").write_text(schema_header(schema))
        tables = made / "library.cc"
        names = [isa.name for isa in settings.isas]
        tables.write_text(library_source(schemas, names, version("trtllm_lite"), package.digest))
        objects = self._compiled([tables], made, settings.flags)
        for isa in settings.isas:
            sources = [_kernel(schema) for schema in schemas]
            flags = [*settings.flags, f"-DTL_ISA={isa.name}", *(f"-m{feature}" for feature in isa.features)]
            objects += self._compiled(sources, made, flags, isa.name)
        self.compiler.link_shared_object(objects, self.get_ext_fullpath(ext.name), target_lang="c++")

    def get_source_files(self) -> list[str]:
        """What a source distribution must have besides the package's own files: C++ sources."""
        roots = [self._package(ext).root for ext in self.extensions]
        return [str(path) for root in roots for kind in ("*.cc", "*.h") for path in sorted(root.rglob(kind))]

    def _package(self, ext: Extension) -> PluginPackage:
        module = ext.name.rpartition(".")[0]
        root = Path(self.get_finalized_command("build_py").get_package_dir(module))
        return PluginPackage(self.distribution.get_name(), self.distribution.get_version(), module, root)

    def _compiled(self, sources: list[Path], made: Path, flags: list[str], folder: str = "") -> list[str]:
        includes = [str(include_folder()), str(made)]
        names, target = [str(source) for source in sources], str(made / folder)
        options = [*_FLAGS, *flags]
        compiled: list[str] = self.compiler.compile(names, target, include_dirs=includes, extra_postargs=options)
        return compiled


def _kernel(schema: Schema) -> Path:
    return schema.package.root / schema.folder / "cpu.cc"


def _check(schema: Schema) -> None:
    if schema.check or schema.collective:
        what = "check.h" if schema.check else "collective = true"
        raise BuildError(f"{schema.name}: found {what}, which only operators of trtllm_lite itself may have")
