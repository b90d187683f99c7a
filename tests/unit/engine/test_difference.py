"""What differs between two engines, and whether that can change results."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from tests.unit.builder.checkpoints import LIMITS, save_checkpoint
from tests.unit.engine import samples
from tests.unit.engine.samples import MANIFEST, MODEL
from trtllm_lite.builder import build_engine
from trtllm_lite.cli import cli
from trtllm_lite.common.extents import Extent, symbol
from trtllm_lite.engine.difference import Comparison, compare_paths
from trtllm_lite.engine.manifest import Accuracy, Fusion, Limits, Manifest, Memory, Tactic, Target
from trtllm_lite.engine.plan import (
    CompiledKernel,
    CudaSettings,
    IntArgument,
    LaunchInstruction,
    Plan,
    PlanTensor,
    TensorArgument,
)
from trtllm_lite.engine.provenance import Material, write_provenance
from trtllm_lite.engine.writer import EngineContent, write_engine
from trtllm_lite.errors import EngineError

Build = Callable[..., Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a function that builds one checkpoint into engines with the given settings."""
    root = tmp_path_factory.mktemp("engines")
    checkpoint = save_checkpoint(root / "checkpoint")

    def built(name: str, **settings: Any) -> Path:
        build_engine(checkpoint, root / name, **{**LIMITS, **settings})
        return root / name

    return built


@pytest.fixture(scope="module")
def engine(build: Build) -> Path:
    return build("engine")


def _inspect(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["inspect", *map(str, arguments)], env={"COLUMNS": "200"})


def _sections(comparison: Comparison) -> set[str]:
    return {difference.section for difference in comparison.differences}


def test_builds_alike_do_not_differ(engine: Path, build: Build) -> None:
    result = _inspect(engine, "--diff", build("again"))
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == 1
    assert "do not differ" in result.output


def test_another_batch_size_changes_limits_and_memory_but_no_results(engine: Path, build: Build) -> None:
    other = build("larger", max_batch_size=5)
    found = {difference.name: difference for difference in compare_paths(engine, other).differences}
    assert (found["max_batch_size"].a, found["max_batch_size"].b) == (3, 5)
    assert _sections(compare_paths(engine, other)) == {"limits", "kv_cache", "memory"}
    result = _inspect(engine, "--diff", other)
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "What differs changes no results (exit code 0)"


def test_another_scheme_changes_quantization_and_weights(engine: Path, build: Build) -> None:
    result = _inspect(engine, "--diff", build("int8", qformat="int8_wo"))
    assert result.exit_code == 3
    lines = [line.split() for line in result.output.splitlines()]
    assert ["qformat", "full_prec", "int8_wo"] in lines
    assert ["quantization"] in lines
    assert ["weights"] in lines
    verdict = "What differs can change results (exit code 3): quantization, kernels, weights"
    assert result.output.splitlines()[-1] == verdict
    assert any(line[:4] == ["layers.0.mlp.gate_up_proj.weight", "and", "1", "like"] for line in lines)
    assert ["memory", "(changes", "no", "results)"] in lines


def test_json_has_every_field(engine: Path, build: Build) -> None:
    result = _inspect(engine, "--diff", build("json", max_batch_size=4, qformat="int8_wo"), "--json")
    assert result.exit_code == 3
    found = json.loads(result.output)
    assert found.keys() == {"a", "b", "differences", "changes_results"}
    assert found["changes_results"] is True
    assert all(item.keys() == {"section", "name", "a", "b", "changes_results"} for item in found["differences"])
    scheme = {"section": "quantization", "name": "qformat", "a": "full_prec", "b": "int8_wo", "changes_results": True}
    assert scheme in found["differences"]


def test_checkpoints_are_refused(engine: Path) -> None:
    checkpoint = engine.parent / "checkpoint"
    with pytest.raises(EngineError, match=r"two engines .* is a checkpoint: build it with `trtllm-lite build`"):
        compare_paths(engine, checkpoint)
    assert _inspect(checkpoint, "--diff", engine).exit_code == 1
    assert _inspect(engine, "--diff", engine, "--kernels").exit_code == 2


def _write(path: Path, manifest: Manifest = MANIFEST, plan: Plan | None = None, **cubins: bytes) -> Path:
    text = (plan or samples.plan()).to_json()
    write_engine(path, EngineContent(samples.weights(), text, manifest.to_json(), cubins=cubins))
    return path


def test_one_value_of_a_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = _write(tmp_path / "a")
    monkeypatch.setitem(samples.ARRAYS, "odd", np.array([0, 1, 2, 3, 4, 5, 6.5], dtype=np.float32))
    (difference,) = compare_paths(a, _write(tmp_path / "b")).differences
    assert (difference.section, difference.name, difference.changes_results) == ("weights", "odd", True)
    assert difference.a.startswith("float32 [7] row_major, CRC-32C ")
    assert _inspect(a, "--diff", tmp_path / "b").exit_code == 3


CACHE = MANIFEST.kv_cache
HALF = replace(CACHE.groups[0], caches=samples.caches((1, 2), "float16"))
ACCURACY = Accuracy("text", 100, 9.5, 9.25, 0.01, 0.97)


@pytest.mark.parametrize(
    ("section", "changes_results", "changed"),
    [
        ("model", True, {"model": replace(MODEL, generation={"temperature": 0.5})}),
        ("quantization", True, {"qformat": "int4_awq"}),
        ("limits", False, {"limits": Limits(2, 16, 32, 24, 0, 2)}),
        ("limits", False, {"gather_context_logits": True}),
        ("kv_cache", True, {"kv_cache": replace(CACHE, groups=(HALF,))}),
        ("kv_cache", False, {"kv_cache": replace(CACHE, num_blocks=5)}),
        ("target", True, {"target": Target("cpu", ("sm_90a",))}),
        ("tactics", True, {"tactics": (Tactic("linear 0", "tiled", "faster"),)}),
        ("fusions", True, {"fusions": (MANIFEST.fusions[0], Fusion("merge_qkv", "layers.1.attention", True, ""))}),
        ("expansions", True, {"expansions": (Tactic("linear 0", "bfloat16", "no kernel reads it"),)}),
        ("memory", False, {"memory": Memory(1000, 1024, 65)}),
        ("accuracy", False, {"accuracy": ACCURACY}),
        ("producer", False, {"producer": "trtllm_lite other"}),
        ("producer", False, {"model": replace(MODEL, producer="trtllm_lite other")}),
        ("files", True, {"files": {"tokenizer.json": "00c0ffef"}}),
    ],
)
def test_each_section(section: str, changes_results: bool, changed: dict[str, Any], tmp_path: Path) -> None:
    comparison = compare_paths(_write(tmp_path / "a"), _write(tmp_path / "b", replace(MANIFEST, **changed)))
    assert _sections(comparison) == {section}
    assert comparison.changes_results is changes_results


def test_another_reason_for_the_same_choice_changes_nothing(tmp_path: Path) -> None:
    a, b = (replace(MANIFEST, tactics=(Tactic("linear 0", "tiled", reason),)) for reason in ("3 us", "4 us"))
    (difference,) = compare_paths(_write(tmp_path / "a", a), _write(tmp_path / "b", b)).differences
    assert (difference.a, difference.b, difference.changes_results) == ("tiled: 3 us", "tiled: 4 us", False)


def test_an_attribute_of_an_operator_changes_the_program(tmp_path: Path) -> None:
    plan = samples.plan()
    (call,) = plan.programs[0].instructions
    step = replace(plan.programs[0], instructions=(replace(call, attributes={"epsilon": 1e-5}),))
    b = _write(tmp_path / "b", plan=replace(plan, programs=(step,)))
    (difference,) = compare_paths(_write(tmp_path / "a"), b).differences
    assert (difference.section, difference.name) == ("kernels", "program step (cpu)")
    assert difference.changes_results


def _launching(key: str) -> Plan:
    plan = samples.plan()
    launch = LaunchInstruction("launch", 0, (1, 1, 1), (), False)
    step = replace(plan.programs[0], arch="sm_90a", instructions=(launch,))
    kernel = CompiledKernel("linear", {"sm_90a": key}, 32, 0)
    return replace(plan, programs=(step,), kernels=(kernel,), cuda=CudaSettings((1,), 0, 0))


def test_of_kernels_that_share_a_name_only_those_of_one_engine_are_shown(tmp_path: Path) -> None:
    plan = _launching("first")
    more = replace(plan, kernels=(CompiledKernel("linear", {"sm_90a": "second"}, 64, 0), *plan.kernels))
    more = replace(more, programs=(replace(more.programs[0], instructions=()),))
    a = _write(tmp_path / "a", plan=plan, first=b"code")
    b = _write(tmp_path / "b", plan=more, first=b"code", second=b"other code")
    kernel, program = compare_paths(a, b).differences
    assert kernel.a is None
    assert kernel.b.endswith(", 64 threads, 0 B shared: sm_90a from second")
    assert program.name == "program step (sm_90a)"


@pytest.mark.parametrize(
    ("key", "image", "names", "changes_results"),
    [
        ("first", b"other code", ["linear", "program step (sm_90a)"], True),
        ("second", b"code", ["linear"], False),
    ],
)
def test_kernels_are_compared_by_their_content(
    key: str, image: bytes, names: list[str], changes_results: bool, tmp_path: Path
) -> None:
    manifest = replace(MANIFEST, target=Target("cuda", ("sm_90a",)))
    a = _write(tmp_path / "a", manifest, _launching("first"), first=b"code")
    comparison = compare_paths(a, _write(tmp_path / "b", manifest, _launching(key), **{key: image}))
    assert [difference.name for difference in comparison.differences] == names
    assert _sections(comparison) == {"kernels"}
    assert comparison.changes_results is changes_results


def test_a_plan_that_names_what_the_file_lacks_is_damaged(tmp_path: Path) -> None:
    a = _write(tmp_path / "a", plan=_launching("absent"))
    with pytest.raises(EngineError, match=r"damaged: expected a checksum of cubin\.absent"):
        compare_paths(a, a)


def test_many_differences_are_counted(tmp_path: Path) -> None:
    tactics = tuple(Tactic(f"linear {n}", "tiled", "") for n in range(69))
    comparison = compare_paths(_write(tmp_path / "a"), _write(tmp_path / "b", replace(MANIFEST, tactics=tactics)))
    console = Console(width=100, file=io.StringIO())
    comparison.render(console)
    assert "and 61 more; --json lists all" in console.file.getvalue()
    assert console.file.getvalue().count("linear ") == 8
    assert len(comparison.differences) == 69


def test_of_long_lists_only_what_differs_is_printed(tmp_path: Path) -> None:
    settings = (f"in 64, out 96, tokens {n}, norm 1, bias 0, splits 1, stages 2, page 8" for n in (4, 8))
    a, b = (replace(MANIFEST, tactics=(Tactic("linear 0", text, "fits"),)) for text in settings)
    path = _write(tmp_path / "a", a)
    lines = [line.split() for line in _inspect(path, "--diff", _write(tmp_path / "b", b)).output.splitlines()]
    assert ["linear", "0", "…,", "tokens", "4", "…,", "tokens", "8"] in lines
    lines = [line.split() for line in _inspect(_write(tmp_path / "c"), "--diff", path).output.splitlines()]
    assert ["linear", "0", "none", "in", "64,", "out", "96,", "tokens", "4,", "…,", "page", "8:", "fits"] in lines


def _table_plan(columns: int, *, stride: Extent | int, rows: int = 2) -> Plan:
    """A plan whose launch reads block tables of 4-byte entries from row ``rows + num_decode_seqs`` on."""
    plan = _launching("first")
    tables = PlanTensor("block_tables", "int32", ("num_tables", columns), "row_major", "input", 0)
    number = len(plan.tensors)
    offset = Extent(4 * columns * rows, (("num_decode_seqs", 4 * columns, 1),))
    launch = LaunchInstruction("launch", 0, (1, 1, 1), (TensorArgument(number, offset), IntArgument(stride)), False)
    step = replace(plan.programs[0], instructions=(launch,))
    return replace(plan, tensors=(*plan.tensors, tables), programs=(step,))


@pytest.mark.parametrize(
    ("plan", "changes_results"),
    [
        (_table_plan(8, stride=symbol("max_blocks_per_seq")), False),
        (_table_plan(8, stride=symbol("max_blocks_per_seq"), rows=3), True),
        (_table_plan(8, stride=symbol("max_blocks_per_seq", 2)), True),
        (_table_plan(8, stride=8), True),
    ],
)
def test_the_width_of_block_tables_is_no_difference_where_it_is_named(
    plan: Plan, changes_results: bool, tmp_path: Path
) -> None:
    a = _write(tmp_path / "a", plan=_table_plan(4, stride=symbol("max_blocks_per_seq")), first=b"code")
    assert compare_paths(a, _write(tmp_path / "b", plan=plan, first=b"code")).changes_results is changes_results


def _with_statement(directory: Path, parameters: dict[str, Any], digest: str, version: str) -> Path:
    directory.mkdir()
    _write(directory / "rank0.engine")
    materials = [Material("trtllm_lite", {"sha256": "c0de"}), Material("weights.safetensors", {"sha256": digest})]
    write_provenance(directory, parameters, materials, {"numpy": version})
    return directory


def test_provenance_explains_and_is_no_verdict(tmp_path: Path) -> None:
    a = _with_statement(tmp_path / "a", {"build": {"max_batch_size": 2}, "model": {"dtype": "float32"}}, "12", "2.0")
    b = _with_statement(tmp_path / "b", {"build": {"max_batch_size": 3, "target": "cpu"}}, "34", "2.1")
    result = _inspect(a, "--diff", b, "--json")
    assert result.exit_code == 0
    found = json.loads(result.output)["differences"]
    assert {item["section"] for item in found} == {"provenance"}
    assert {item["name"]: (item["a"], item["b"]) for item in found} == {
        "option build max_batch_size": (2, 3),
        "option build target": (None, "cpu"),
        "option model dtype": ("float32", None),
        "source weights.safetensors": ("sha256 12", "sha256 34"),
        "version of numpy": ("2.0", "2.1"),
    }


def test_a_statement_of_one_engine_is_named(tmp_path: Path) -> None:
    a = _with_statement(tmp_path / "a", {"build": {}}, "12", "2.0")
    (difference,) = compare_paths(a, _write(tmp_path / "b")).differences
    assert (difference.name, difference.a, difference.b) == ("provenance.json", "names 2 sources", None)
    assert not difference.changes_results


def test_text_of_a_file_is_printed_as_it_is(tmp_path: Path) -> None:
    b = _write(tmp_path / "b", replace(MANIFEST, producer="[/red]\x1b[2J"))
    text = _inspect(_write(tmp_path / "a"), "--diff", b).output
    assert r"[/red]\x1b[2J" in text
    assert "\x1b" not in text
