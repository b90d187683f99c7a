"""Imports point along the data flow, in no circle, and the runtime runs without what convert and build need."""

import ast
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib import resources
from pathlib import Path

import pytest

import trtllm_lite

PACKAGE = Path(trtllm_lite.__file__).parent

# For each part of the package, the parts it may import when it is imported. Every part may import the plain parts.
PLAIN = {
    *("errors", "common", "foreign_names", "pages", "request_fields"),
    "_core",
}
ALLOWED = {
    "errors": set(),
    "common": set(),
    "foreign_names": set(),
    "pages": set(),
    "request_fields": set(),
    "plugins": set(),
    "network": {"plugins"},
    "convert": {"network", "plugins"},
    "quantize": {"network", "plugins", "convert"},  # of convert, only its container of tensors
    "builder": {"network", "quantize", "engine", "plugins", "engine_cache"},  # of engine_cache, only its store
    "engine": {"network", "plugins"},  # of plugins, only the layout of sampling records
    "csrc": {"engine"},  # what is generated from the engine's records
    "runtime": {"engine"},
    "bench": {"runtime", "engine"},
    "evaluation": {"runtime", "engine"},
    "engine_cache": set(),
    "llm": {"workflows", "runtime", "engine"},
    "llmapi": set(),
    "serve": {"llm", "runtime", "engine"},
    "workflows": {"builder", "evaluation", "runtime", "quantize", "convert", "network", "engine", "engine_cache"},
    "registry": {"engine"},
    "triton": {"llm", "runtime", "engine"},
    "cli": set(),
}
# Modules that need the standard library alone; every part may import them.
LIGHT = {"trtllm_lite.bench.http_client.endpoints", "trtllm_lite.serve.http.limits"}
HEAVY = (
    "PIL",
    "cyclonedx",
    "gguf",
    "huggingface_hub",
    "ml_dtypes",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "oras",
    "requests",
    "safetensors",
    "sentencepiece",
    "torch",
    "transformers",
)


def imported_modules(tree, *, everywhere, package=()):
    """Absolute names that a module imports: at its top level, or ``everywhere`` in it, except under TYPE_CHECKING."""
    pending = list(ast.iter_child_nodes(tree))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or "plugins" in package, "imports are absolute in this package, except in plugins"
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending.extend(node.orelse)
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending.extend(ast.iter_child_nodes(node))


def parts_imported(path, *, everywhere):
    """Parts of this package that the file imports, except LIGHT modules."""
    package = path.relative_to(PACKAGE.parent).parts[:-1]
    modules = imported_modules(ast.parse(path.read_text()), everywhere=everywhere, package=package)
    names = [name.split(".") for name in modules if not {name, name.rpartition(".")[0]} & LIGHT]
    found = {name[1] for name in names if name[0] == "trtllm_lite" and len(name) > 1}
    return {part for part in found if (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file()}


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def source_files():
    for path in sorted([*PACKAGE.rglob("*.py"), *(PACKAGE / "plugins").rglob("*.py")]):  # rglob does not follow links
        if path.parent != PACKAGE or path.stem in ALLOWED:
            yield path


@pytest.mark.parametrize("path", list(source_files()), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_along_the_data_flow(path):
    part = part_of(path)
    assert part in ALLOWED, f"{part} is a new part of the package: say in this test what it may import"
    forbidden = parts_imported(path, everywhere=False) - ALLOWED[part] - PLAIN - {part}
    assert not forbidden


def test_no_parts_import_each_other_in_a_circle():
    """Imports within functions count, too."""
    graph = {}
    for path in source_files():
        graph.setdefault(part_of(path), set()).update(parts_imported(path, everywhere=True) - {part_of(path)})
    assert "plugins" in graph
    TopologicalSorter(graph).prepare()  # raises CycleError for a circle


@pytest.mark.parametrize("part", ["runtime", "bench", "evaluation"])
def test_the_runtime_cannot_reach_the_compiler(part):
    for path in (PACKAGE / part).rglob("*.py"):
        reached = parts_imported(path, everywhere=True)
        assert not reached & {"builder", "convert", "network", "quantize", "plugins"}, path


@pytest.mark.parametrize("room", ["host", "cuda", "network"])
def test_no_executor_includes_what_is_for_cpus(room):
    """Code that the kernels for CPUs share with other executors lies in host/."""
    sources = [path for path in (PACKAGE / "csrc" / room).rglob("*") if path.suffix in (".h", ".cc")]
    assert sources
    assert [path.name for path in sources if '#include "cpu/' in path.read_text()] == []


BLOCKER = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)
sys.meta_path.insert(0, Blocker())
"""


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "module",
    [
        *("runtime", "engine.reader", "workflows.inspect", "bench.latency", "bench.serving_bench"),
        *("evaluation", "cli", "llm"),
    ],
)
def test_modules_load_without_the_build_extra(module):
    process = run_python(f"{BLOCKER}\nimport trtllm_lite.{module}")
    assert process.returncode == 0, process.stderr


def test_the_command_line_says_which_extra_is_missing(tmp_path):
    arguments = ["convert", "--model_dir", str(tmp_path), "--output_dir", str(tmp_path / "out")]
    process = run_python(f"{BLOCKER}\nsys.argv[1:] = {arguments!r}\nfrom trtllm_lite.cli import main\nmain()")
    assert process.returncode == 1
    assert "pip install 'trtllm_lite[build]'" in process.stderr
    assert "Traceback" not in process.stderr


def test_the_public_names_load_when_they_are_used():
    code = (
        "import sys, trtllm_lite\n"
        "print(*sys.modules)\n"
        "from trtllm_lite import LLM, KvCacheConfig, RequestOutput, SamplingParams, SchedulerConfig\n"
        "assert set(trtllm_lite.__all__) <= set(dir(trtllm_lite))\n"
    )
    process = run_python(f"{BLOCKER}\n{code}")
    assert process.returncode == 0, process.stderr
    loaded = process.stdout.split()
    assert "numpy" not in loaded
    assert [name for name in loaded if name.startswith("trtllm_lite")] == ["trtllm_lite"]


def packages_loaded_by(*arguments):
    """What a command imports, by the first part of each name."""
    call = f"try:\n    cli({arguments!r})\nfinally:\n    print(*sys.modules)"
    process = run_python(f"import sys\nfrom trtllm_lite.cli import cli\n{call}")
    assert process.returncode == 0, process.stderr
    return {name.split(".")[0] for name in process.stdout.splitlines()[-1].split()}


def test_help_loads_nothing_heavy():
    assert not packages_loaded_by("--help") & {*HEAVY, "numpy", "tokenizers", "rich", "jinja2"}


@pytest.mark.parametrize("module", sorted(LIGHT))
def test_light_modules_need_the_standard_library_alone(module):
    path = PACKAGE.parent / f"{module.replace('.', '/')}.py"
    imported = imported_modules(ast.parse(path.read_text()), everywhere=True)
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names


def test_planning_a_model_config_loads_the_packages_of_networks_alone():
    config = Path(__file__).parents[2] / "configs" / "models" / "llama-3.1-8b.json"
    loaded = packages_loaded_by("plan", "--model_config", str(config), "--target", "sm_90", "--json")
    assert loaded & {*HEAVY, "cuda"} == {"ml_dtypes", "onnx", "onnx_ir"}


def test_the_package_says_that_it_is_typed():
    assert resources.files("trtllm_lite").joinpath("py.typed").is_file()


def test_the_product_does_without_what_is_for_tests():
    """``_testing`` is no part of a wheel."""
    users = [path for path in PACKAGE.rglob("*.py") if "_testing" in path.read_text()]
    assert users == []


def test_wheels_are_built_without_what_is_for_tests():
    """The module ``_testing`` is built only with a CMake option, and wheels leave out its stub."""
    root = Path(__file__).parents[2]
    assert 'option(TRTLLM_LITE_TESTING "Build trtllm_lite._testing" OFF)' in (root / "CMakeLists.txt").read_text()
    scikit_build = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["scikit-build"]
    assert "TRTLLM_LITE_TESTING" not in str(scikit_build)
    assert "trtllm_lite/_testing.pyi" in scikit_build["wheel"]["exclude"]
