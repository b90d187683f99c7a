"""``quantize --autoq_format`` on a tiny model: formats are chosen by measured loss and a budget, and recorded."""

import json
from pathlib import Path

import onnx_ir as ir
import pytest
from click.testing import CliRunner, Result

from tests.e2e.test_quantize import EVEN, TEXT, converted
from trtllm_lite.builder import open_checkpoint
from trtllm_lite.cli import cli
from trtllm_lite.errors import BuildError
from trtllm_lite.quantize.network import Recipe, quantized_as
from trtllm_lite.workflows import mixed_precision as stage
from trtllm_lite.workflows.calibration import Calibration, CalibrationText

OF_LAYER = ("attention.q_proj+k_proj+v_proj", "attention.o_proj", "mlp.gate_proj+up_proj", "mlp.down_proj")
SITES = [f"layers.{layer}.{products}" for layer in range(3) for products in OF_LAYER]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_formats_are_chosen_and_recorded(tmp_path: Path) -> None:
    source = ["--checkpoint_dir", converted(tmp_path, "qwen2", **EVEN)]
    (tmp_path / "text.txt").write_text(TEXT * 2, encoding="utf-8")
    text = ["--calib_dataset", tmp_path / "text.txt", "--calib_max_seq_length", 48]
    how = ["--autoq_format", "int4_awq,int8_wo", "--auto_quantize_bits", 7, "--group_size", 32]
    result = run("quantize", *source, "--output_dir", tmp_path / "out", *text, *how)
    assert result.exit_code == 0, result.output
    network = open_checkpoint(tmp_path / "out").model
    table = json.loads(network.metadata_props["trtllm_lite.autoq"])
    assert [row["site"] for row in table] == SITES
    assert all(row["reason"] and row["site"] in result.stdout for row in table)
    for row in table:
        divergences = {candidate["qformat"]: candidate["divergence"] for candidate in row["candidates"]}
        assert 0 == divergences["full_prec"] < divergences["int8_wo"] < divergences["int4_awq"]
    chosen = {row["site"]: row["qformat"] for row in table}
    assert {"int4_awq", "int8_wo"} <= set(chosen.values())
    stored = {"int4_awq": "UINT4", "int8_wo": "INT8", "full_prec": "FLOAT"}
    for node in network.graph:
        block, _, name = str(node.name).rpartition(".")
        if node.op_type == "MatMul" and block.startswith("layers."):
            (site,) = (
                site for site in chosen if site.startswith(f"{block}.") and name in site.replace("+", ".").split(".")
            )
            assert _stored(node) == stored[chosen[site]]
    assert set(quantized_as(network).split(",")) == {"full_prec", *chosen.values()}


def _stored(product: ir.Node) -> str:
    """The type of a product's weight."""
    transpose = product.inputs[1].producer()
    value = transpose.inputs[0]
    while value.producer() is not None:
        value = value.producer().inputs[0]
    return value.dtype.name


def test_what_was_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(converted(tmp_path))
    (tmp_path / "text.txt").write_text(TEXT * 2, encoding="utf-8")
    calibration = Calibration(CalibrationText(tmp_path / "text.txt", max_seq_length=48), tmp_path / "kept")
    steps: list[tuple[int, int]] = []

    def interrupted(_: str, done: int, total: int) -> None:
        steps.append((done, total))
        if done == 4:
            raise KeyboardInterrupt

    arguments = (checkpoint, Recipe(), ["int8_wo", "fp8_wo"], 12, calibration)
    with pytest.raises(KeyboardInterrupt):
        stage.choose_formats(*arguments, interrupted)
    whole = stage.choose_formats(
        checkpoint, Recipe(), ["int8_wo", "fp8_wo"], 12, Calibration(calibration.text), _ignore
    )
    measured: list[object] = []
    evaluate = stage.evaluate
    monkeypatch.setattr(stage, "evaluate", lambda *a, **k: measured.append(a) or evaluate(*a, **k))
    assert stage.choose_formats(*arguments, _ignore) == whole
    assert len(measured) == 2 * len(SITES) - 4
    with pytest.raises(BuildError, match="autoq_format chooses the qformat of every product, and int8_wo is asked for"):
        stage.choose_formats(checkpoint, Recipe("int8_wo"), ["fp8_wo"], 12, calibration, _ignore)


def test_a_budget_that_no_format_meets_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(converted(tmp_path))
    monkeypatch.delattr(stage, "evaluate")
    monkeypatch.delattr(stage, "statistics_of")
    with pytest.raises(BuildError, match=r"auto_quantize_bits is 4, and the formats take 8\.\d+ bits .* raise auto_"):
        stage.choose_formats(checkpoint, Recipe(), ["int8_wo", "int8_sq"], 4, Calibration(), _ignore)


def _ignore(stage: str, done: int, total: int) -> None:
    del stage, done, total


def test_formats_and_budget_go_together(tmp_path: Path) -> None:
    common = ["--checkpoint_dir", tmp_path, "--output_dir", tmp_path / "out"]
    assert (
        "pass --autoq_format and --auto_quantize_bits together"
        in run("quantize", *common, "--autoq_format", "fp8").stderr
    )
