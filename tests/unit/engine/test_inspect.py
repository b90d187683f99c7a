import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.builder.checkpoints import LIMITS, save_checkpoint
from tests.unit.engine.samples import MANIFEST, MODEL, plan, write_sample
from trtllm_lite.builder import build_engine
from trtllm_lite.engine.manifest import Fusion, Manifest, Tactic, Target
from trtllm_lite.engine.writer import EngineContent, write_engine
from trtllm_lite.errors import EngineError
from trtllm_lite.workflows.inspect import inspect_path


def _rendered(path: Path, *, kernels: bool = False) -> str:
    console = Console(width=100, file=io.StringIO())
    inspect_path(path).render(console, kernels=kernels)
    return console.file.getvalue()


def test_an_engine_directory(tmp_path: Path) -> None:
    build_engine(save_checkpoint(tmp_path / "checkpoint", "qwen3"), tmp_path / "engine", **LIMITS)
    found = inspect_path(tmp_path / "engine")
    assert (found.kind, found.target) == ("engine", "cpu")
    assert found.limits["max_num_tokens"] == 48
    assert found.operators["PagedAttention"] == 2
    assert found.memory["total"] == sum(found.memory[kind] for kind in ("weights", "kv_cache", "workspace"))
    assert set(found.file_bytes) == {"rank0.engine", "config.json", "tokenizer.json", "tokenizer_config.json"}
    fusions = {item.pass_name: (item.fused, item.candidates) for item in found.fusions}
    assert fusions["merge_qkv"] == (2, 2)
    assert "rowwise" not in fusions
    assert fusions["add_norm"] == (4, 5)
    assert json.loads(json.dumps(found.to_dict()))["kind"] == "engine"


def test_the_text_tells_what_was_not_fused_and_why(tmp_path: Path) -> None:
    text = _rendered(write_sample(tmp_path / "rank0.engine"))
    assert "merge_qkv    1 of 2" in text
    assert "not fused by merge_qkv" in text
    assert "layers.1.attention    they read different inputs" in text
    assert "1.0 KiB (1,024 B)" in text
    assert "temperature=0.7" in text


def test_a_checkpoint_directory(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "bfloat16")
    found = inspect_path(checkpoint)
    assert (found.kind, found.target, found.limits) == ("checkpoint", "", {})
    assert found.operators["MatMul"] == 15
    assert set(found.memory) == {"weights in bfloat16", "weights in float32"}
    assert {item.pass_name: item.fused for item in found.fusions}["merge_gate_up"] == 2
    assert "weights in bfloat16" in _rendered(checkpoint)


def test_neither_engine_nor_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"neither an engine .* nor a checkpoint .*`trtllm-lite convert`"):
        inspect_path(tmp_path)


def _sample(path: Path, manifest: Manifest = MANIFEST, plan: str = plan().to_json()) -> Path:
    write_engine(path, EngineContent((), plan, manifest.to_json()))
    return path


def test_markup_and_escapes_of_a_file_are_printed_as_text(tmp_path: Path) -> None:
    model = replace(MODEL, architecture="[/red]\x1b[2J[bold]", family="[link=x]" * 1000, generation={"[/x]": 1})
    fusion = Fusion("[/pass]", "[/site]\n", False, "[/reason]")
    text = _rendered(_sample(tmp_path / "e", replace(MANIFEST, producer="[/me]", model=model, fusions=(fusion,))))
    for shown in (r"[/red]\x1b[2J[bold]", "made by [/me] for cpu", "[/x]=1", r"[/site]\n", "[/reason]", "[/pass]"):
        assert shown in text
    assert "\x1b" not in text
    assert text.count("[link=x]") < 200


@pytest.mark.parametrize("gathers", [False, True])
def test_it_says_whether_context_logits_can_be_had(tmp_path: Path, gathers: bool) -> None:
    path = _sample(tmp_path / "e", replace(MANIFEST, gather_context_logits=gathers))
    assert f"gather_context_logits    {'yes' if gathers else 'no'} " in _rendered(path)
    assert inspect_path(path).to_dict()["gather_context_logits"] is gathers


def test_how_kernels_are_made_is_told_on_demand(tmp_path: Path) -> None:
    tactics = tuple(Tactic(f"linear {n}", "tokens 1, norm 0", "x stays in shared memory") for n in range(200))
    path = _sample(tmp_path / "e", replace(MANIFEST, tactics=tactics))
    assert "200; --kernels lists them" in _rendered(path)
    assert "norm 0" not in _rendered(path)
    assert _rendered(path, kernels=True).count("tokens 1, norm 0: x stays in shared memory") == 200


@pytest.mark.parametrize("kernel", [-1, 1, 10**30])
def test_a_kernel_that_there_is_not_is_an_error(tmp_path: Path, kernel: int) -> None:
    document = json.loads(plan().to_json())
    launch = {"kind": "launch", "kernel": kernel, "grid": [1, 1, 1], "args": [], "programmatic": False}
    document["programs"][0]["instructions"] = [launch]
    document["kernels"] = [{"name": "linear", "cubins": {}, "threads": 32, "shared_bytes": 0}]
    sizes = {"decode_batches": [1], "workspace_bytes": 0, "cublaslt_version": 0}
    document["cuda"] = {**sizes, "adapted": [], "collectives": [], "slot_numbers": []}
    path = _sample(tmp_path / "e", replace(MANIFEST, target=Target("cuda", ("sm_90a",))), json.dumps(document))
    with pytest.raises(EngineError, match=r"kernel.*[Tt]he file is damaged"):
        inspect_path(path)


def test_odd_checksums_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtllm_lite.engine.writer.json.dumps", _without_text)
    path = _sample(tmp_path / "e")
    monkeypatch.undo()
    with pytest.raises(EngineError, match="checksums: expected"):
        inspect_path(path)


def _without_text(value: Any, dumps: Callable[..., str] = json.dumps, **settings: Any) -> str:
    """``json.dumps``, except that the checksums of a header become a list instead of a string."""
    if isinstance(value, dict) and "__metadata__" in value:
        value["__metadata__"]["checksums"] = ["0" * len(value["__metadata__"]["checksums"])]
    return dumps(value, **settings)


def test_what_has_no_kernel_of_its_own_is_listed_with_its_cost(tmp_path: Path) -> None:
    build_engine(save_checkpoint(tmp_path / "checkpoint", "gemma2"), tmp_path / "engine", **LIMITS)
    rowwise = next(item for item in inspect_path(tmp_path / "engine").fusions if item.pass_name == "rowwise")
    assert rowwise.not_fused["logit_softcap.mul"] == "Div, Tanh, Mul run as Rowwise: 568 bytes a token in float32"
