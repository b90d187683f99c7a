"""Lists the packages whose code takes part in a build, for provenance and SBOM."""

from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, metadata
from typing import TYPE_CHECKING

from trtllm_lite.errors import BuildError

if TYPE_CHECKING:
    from importlib.metadata import PackageMetadata

    from trtllm_lite.engine.sbom import Package

_ALWAYS = ("numpy", "onnx", "onnx-ir", "ml_dtypes", "tokenizers")
_MAX_LICENCE = 100  # characters; some packages have the whole text of the licence in this field


def packages_of(files: Sequence[str], target: str) -> "Iterator[Package]":
    """The packages that take part in building the model's ``files`` for the kind of ``target``, by name.

    Raises BuildError for code that is not installed as a package, except compilers, which may be installed in other
    ways.
    """
    from trtllm_lite.engine.sbom import Package

    read_by = {
        "gguf": any(name.endswith(".gguf") for name in files),
        "sentencepiece": "tokenizer.model" in files,
    }
    for name in (*_ALWAYS, *(name for name, takes_part in read_by.items() if takes_part)):
        found = _metadata(name)
        if found is None:
            raise BuildError(
                f"--provenance names the version of {name}, and pip knows none: pip install 'trtllm_lite[build]'"
            )
        yield Package(name, found["Version"], _licence(found))
    compiler = _compiler(target)
    if compiler is not None:
        found = _metadata(compiler[0])
        licence = None if found is None else _licence(found)
        yield Package(*compiler, licence, on_pypi=found is not None)


def _compiler(target: str) -> tuple[str, str] | None:
    """The name and the version of the compiler for a kind of target, even for results from its cache; None for CPUs."""
    if target == "cuda":
        from trtllm_lite.builder.nvrtc import compiler_version

        name, _, version = compiler_version().partition(" ")
        return name, version
    if target == "tensorrt":
        from trtllm_lite.builder.tensorrt.library import find_library

        library = find_library()
        return library.package, library.version
    return None


def _metadata(name: str) -> "PackageMetadata | None":
    try:
        return metadata(name)
    except PackageNotFoundError:
        return None


def _licence(package: "PackageMetadata") -> str | None:
    """A package's statement of its licence: https://packaging.python.org/en/latest/specifications/core-metadata/."""
    said = [text for key in ("License-Expression", "License") for text in package.get_all(key, [])]
    said += [text.split(" :: ")[-1] for text in package.get_all("Classifier", []) if text.startswith("License :: ")]
    return next((text for text in said if 0 < len(text) <= _MAX_LICENCE), None)
