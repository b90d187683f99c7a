"""The forms of recurrent layers are compared at build: what is recorded, and that a broken form is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import save_tiny_model
from trtllm_lite import _core
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.inspect import inspect_engine
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.schema import all_schemas

LIMITS = {"max_batch_size": 2, "max_input_len": 32, "max_seq_len": 64}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that converts a tiny model of a family, once."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            root = tmp_path_factory.mktemp(family)
            save_tiny_model(family, root / "model")
            convert_checkpoint(str(root / "model"), root / "checkpoint")
            made[family] = root / "checkpoint"
        return made[family]

    return make


@pytest.mark.parametrize(
    ("family", "operators"),
    [
        ("qwen3_next", {"CausalConv": 2, "GatedDeltaRule": 2}),
        ("bamba", {"CausalConv": 2, "Mamba2": 2}),
        ("lfm2", {"CausalConv": 2}),
        ("llama", {}),
    ],
)
def test_forms_are_recorded(
    checkpoints: Callable[[str], Path], family: str, operators: dict[str, int], tmp_path: Path
) -> None:
    manifest = build_engine(checkpoints(family), tmp_path / "engine", max_draft_len=3, **LIMITS)
    assert {form.operator: len(form.sites) for form in manifest.state_forms} == operators
    for form in manifest.state_forms:
        assert form.num_tokens == 200
        assert set(form.differences) == {"token by token", "restored", "taken back"}
        assert form.largest == 0  # the kernels of CPUs promise the same bits
    shown = inspect_engine(tmp_path / "engine").states
    assert {name for name in shown if name.startswith("forms of ")} == {f"forms of {name}" for name in operators}


@dataclass(frozen=True)
class _Step:
    """``count`` tokens behind ``past`` others, the ``block`` of the state, and the ``end`` of the step before."""

    count: int
    past: int
    block: int
    end: int


class _Broken:
    """``run_kernel`` with an operator whose results are off in some steps."""

    def __init__(self, op_type: str, is_broken: Callable[[_Step], bool]) -> None:
        self.op_type, self.is_broken, self.run, self.end = op_type, is_broken, _core.run_kernel, 0

    def __call__(self, op: str, inputs: list, outputs: list, *rest: Any, **options: Any) -> None:
        self.run(op, inputs, outputs, *rest, **options)
        if op != self.op_type:
            return
        by_name = dict(zip((argument.name for argument in all_schemas()[op].inputs), inputs, strict=True))
        past, block = int(by_name["past_lens"][0]), int(by_name["block_tables"][0, 0])
        if self.is_broken(_Step(len(inputs[0]), past, block, self.end)):
            outputs[0][...] *= np.float32(1 + 1e-4)
        self.end = past + len(inputs[0])


BROKEN: dict[str, Callable[[_Step], bool]] = {
    "token by token": lambda step: step.count == 1 and step.past == 100 and step.block == 0,
    "restored": lambda step: step.block == 1,
    "taken back": lambda step: 0 < step.past < step.end,
}


@pytest.mark.parametrize("form", BROKEN)
@pytest.mark.parametrize(
    ("family", "op_type", "site"),
    [
        ("qwen3_next", "GatedDeltaRule", r"layers\.0\.recurrent\.rule"),
        ("bamba", "Mamba2", r"layers\.0\.recurrent\.space"),
        ("lfm2", "CausalConv", r"layers\.0\.convolution\.conv"),
    ],
)
def test_a_broken_form_is_refused(
    checkpoints: Callable[[str], Path],
    family: str,
    op_type: str,
    site: str,
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_core, "run_kernel", _Broken(op_type, BROKEN[form]))
    message = rf"^{site}\S*: the results of {op_type} {form} are off from those in one step by \S+ of the largest, "
    with pytest.raises(BuildError, match=message + "expected at most 5e-06"):
        build_engine(checkpoints(family), tmp_path / "engine", **LIMITS)
    assert not (tmp_path / "engine").exists()


def test_results_that_are_no_numbers_are_refused(
    checkpoints: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: str, inputs: list, outputs: list, *__: Any, **___: Any) -> None:
        outputs[0][...] = np.nan if len(inputs[0]) == 1 else 1.0

    monkeypatch.setattr(_core, "run_kernel", run)
    with pytest.raises(BuildError, match="CausalConv token by token are off from those in one step by nan"):
        build_engine(checkpoints("lfm2"), tmp_path / "engine", **LIMITS)
