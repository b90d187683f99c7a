"""The next command that `build` suggests can be pasted into a shell as it is, and can succeed."""

import shlex
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.builder.checkpoints import LIMITS, save_checkpoint
from tests.unit.engine.samples import MANIFEST
from trtllm_lite.cli import cli
from trtllm_lite.common.vocabulary import TEXT_ENCODER
from trtllm_lite.engine.manifest import Target
from trtllm_lite.errors import DeviceError


def test_paths_with_spaces_are_quoted(tmp_path: Path) -> None:
    engine = tmp_path / "my engine"
    limits = [f"--{name}={value}" for name, value in LIMITS.items()]
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "qwen3")
    result = CliRunner().invoke(
        cli, ["build", "--checkpoint_dir", str(checkpoint), "--output_dir", str(engine), *limits]
    )
    assert result.exit_code == 0, result.output
    suggested = shlex.split(result.output.splitlines()[-1].removeprefix("next: "))
    assert suggested[suggested.index("--engine_dir") + 1] == str(engine)


@pytest.mark.parametrize("stripped", [False, True])
def test_an_engine_for_a_gpu_is_run_where_one_is(monkeypatch: pytest.MonkeyPatch, stripped: bool) -> None:
    model = replace(MANIFEST.model, tokenizer=True)
    manifest = replace(MANIFEST, target=Target("cuda", ("sm_80", "sm_90a")), model=model, stripped=stripped)
    step = import_module("trtllm_lite.cli.build")
    run = f"trtllm-lite {'bench latency' if stripped else 'generate --prompt'}"
    monkeypatch.setattr(step, "_has_gpu", lambda: True)
    assert step._next_step(manifest, "my engine").startswith(run)
    monkeypatch.setattr(step, "_has_gpu", lambda: False)
    elsewhere = f"copy 'my engine' to a machine with a GPU for sm_80 or sm_90a, and there: {run}"
    assert step._next_step(manifest, "my engine").startswith(elsewhere)


@pytest.mark.parametrize(("tokenizer", "given"), [(True, "TEXTS"), (False, "TOKEN_IDS_OF_TEXTS")])
def test_an_encoder_embeds(tokenizer: bool, given: str) -> None:
    manifest = replace(
        MANIFEST,
        model=replace(MANIFEST.model, tokenizer=tokenizer),
        modules=(replace(MANIFEST.module, kind=TEXT_ENCODER),),
    )
    step = import_module("trtllm_lite.cli.build")
    assert step._next_step(manifest, "my engine") == f"in Python, LLM('my engine').embed({given})"


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise DeviceError("no driver")

    monkeypatch.setattr(import_module("trtllm_lite._core"), "cuda_device_memory", absent)
    assert not import_module("trtllm_lite.cli.build")._has_gpu()
