"""Packages that declare operators and passes are found by their entry points, and one that is wrong is named."""

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx_ir as ir
import pytest

from trtllm_lite.builder.cpu import backend
from trtllm_lite.builder.cuda import lowering
from trtllm_lite.builder.job import Fused
from trtllm_lite.builder.passes import installed
from trtllm_lite.engine.manifest import PluginUse
from trtllm_lite.engine_cache import recipe
from trtllm_lite.errors import BuildError, EngineError
from trtllm_lite.plugins import packages, schema

EXAMPLE = Path(__file__).parents[2] / "examples" / "dynamic_tanh" / "src" / "dynamic_tanh"
PLUGINS, PASSES = "trtllm_lite.plugins", "trtllm_lite.passes"
_CACHED = (packages.other_packages, packages._packages_by_folder, schema.all_schemas, schema.network_schemas)

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A function that installs the example, as it is or with another entry point, and returns its folder."""

    def clear() -> None:
        for function in (*_CACHED, installed.installed_passes, recipe.code_digest):
            function.cache_clear()
        importlib.invalidate_caches()

    def put(group: str = PLUGINS, value: str = "dynamic_tanh.plugins", name: str = "acme") -> Path:
        if not (tmp_path / "dynamic_tanh").exists():
            shutil.copytree(EXAMPLE, tmp_path / "dynamic_tanh", ignore=shutil.ignore_patterns("__pycache__"))
        information = tmp_path / f"{name}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
        clear()
        return tmp_path / "dynamic_tanh"

    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield put
    clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "dynamic_tanh"]:
        del sys.modules[name]


def test_operators_of_packages_come_after_those_of_trtllm_lite(install: Install) -> None:
    folder = install()
    found = schema.all_schemas()
    assert list(found) == [*schema.schemas_of(packages.OWN), "DynamicTanh"]
    assert "DynamicTanh" in schema.network_schemas()
    assert found["DynamicTanh"].part("reference").__name__ == "dynamic_tanh.plugins.dynamic_tanh.reference"
    assert packages.source_path("dynamic_tanh/cuda.cuh") == folder / "plugins" / "dynamic_tanh" / "cuda.cuh"
    assert packages.source_path("cuda/types.cuh") == packages.OWN.root / "cuda" / "types.cuh"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("dynamic_tanh.absent", "there is no such package"),
        ("absent.plugins", "that module does not import"),
        ("dynamic_tanh.norm", "there is no such package"),
        ("dynamic_tanh.plugins.dynamic_tanh", "has no folder with a schema.toml"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_an_error(value: str, message: str, install: Install) -> None:
    install(value=value)
    with pytest.raises(BuildError, match=f"the package acme declares operators in {value}, but .*{message}"):
        schema.all_schemas()


def test_a_schema_that_is_wrong_is_an_error(install: Install) -> None:
    path = install() / "plugins" / "dynamic_tanh" / "schema.toml"
    path.write_text(path.read_text() + "\n[more]\n")
    with pytest.raises(BuildError, match=r"the package acme has a schema.toml that is wrong: .* \['more'\]"):
        schema.all_schemas()


@pytest.mark.parametrize(("folder", "name"), [("tanh", "Linear"), ("linear", "Tanh")])
def test_an_operator_that_there_is_already_is_an_error(folder: str, name: str, install: Install) -> None:
    plugins = install() / "plugins"
    (plugins / "dynamic_tanh").rename(plugins / folder)
    path = plugins / folder / "schema.toml"
    path.write_text(path.read_text().replace('"DynamicTanh"', f'"{name}"'))
    with pytest.raises(BuildError, match=f"acme has the operator {name} in the folder {folder}, and trtllm_lite has"):
        schema.all_schemas()


def test_a_package_without_kernels_is_named(install: Install) -> None:
    folder = install()
    with pytest.raises(EngineError, match=r"package acme 1.0 has no kernels for CPUs \(dynamic_tanh.plugins._cpu\)"):
        packages.load_kernels("acme")
    (folder / "plugins" / "dynamic_tanh" / "cuda.py").unlink()
    with pytest.raises(BuildError, match="the operator DynamicTanh of the package acme has no kernel for GPUs"):
        lowering._kernels_of(schema.all_schemas()["DynamicTanh"])


def test_passes_are_found(install: Install) -> None:
    assert installed.installed_passes() == ()
    install(PASSES, "dynamic_tanh.fuse:DYNAMIC_TANH")
    assert [found.name for found in installed.installed_passes()] == ["dynamic_tanh"]
    install(PASSES, "dynamic_tanh.fuse:GraphPass", "other")
    with pytest.raises(BuildError, match=r"the entry point dynamic_tanh\.fuse:GraphPass to be a GraphPass"):
        installed.installed_passes()


def test_engines_in_the_cache_are_made_again_when_a_package_changes(install: Install) -> None:
    digests = [recipe.code_digest()]
    kernel = install() / "plugins" / "dynamic_tanh" / "cuda.cuh"
    digests.append(recipe.code_digest())
    kernel.write_text(kernel.read_text() + "//\n")
    recipe.code_digest.cache_clear()
    digests.append(recipe.code_digest())
    assert len(set(digests)) == 3


def test_a_build_for_cpus_names_operators_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ir.Graph([], [], nodes=[])
    monkeypatch.setattr(backend, "fuse_into_plugins", lambda *_: Fused(graph, (), (), "auto"))
    monkeypatch.setattr(backend, "plugins_used", lambda _: (PluginUse("acme", "1.0", ("Here", "Missing")),))
    monkeypatch.setattr(backend, "load_kernels", lambda name: {"Here"} if name == "acme" else set())
    with pytest.raises(BuildError, match="the package acme has no kernel for CPUs of Missing: build for a GPU"):
        backend.CpuBackend().fuse(None, None, "auto", None)
