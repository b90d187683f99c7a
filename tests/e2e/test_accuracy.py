"""``build --max_accuracy_loss``: figures in the manifest, exceptions, and a refusal that names what hurts most."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.models import save_tiny_model
from trtllm_lite.builder import build_engine
from trtllm_lite.cli import cli
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.evaluation import evaluate
from trtllm_lite.evaluation.default_text import default_text
from trtllm_lite.quantize.formats import Int8
from trtllm_lite.workflows import accuracy

LIMITS = ["--max_seq_len", 64, "--max_batch_size", 1]


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoint of a model with one layer that int8 hurts: outlier weights make the steps of its rows coarse."""
    monkeypatch.setattr(accuracy, "_WINDOW", 64)
    monkeypatch.setattr(accuracy, "_MAX_TOKENS", 256)
    # Each measurement encodes the whole text, of which it reads 256 tokens.
    beginning = default_text()[:10_000]
    monkeypatch.setattr(import_module("trtllm_lite.evaluation.evaluate"), "default_text", lambda: beginning)
    model = save_tiny_model("llama", tmp_path / "model")
    layer = model.model.layers[1].mlp.down_proj
    layer.weight.data[:, 3] *= 400
    model.model.layers[1].mlp.up_proj.weight.data[3] /= 400
    model.save_pretrained(tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def build(checkpoint: Path, *arguments: object) -> Result:
    command = ["build", "--checkpoint_dir", checkpoint, "--output_dir", checkpoint.parent / "engine", *LIMITS]
    return CliRunner().invoke(cli, [str(part) for part in (*command, *arguments)])


def test_the_manifest_has_what_eval_measures(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are those of the engine's weights, which are computed once although two engines are built."""
    packed: list[object] = []
    pack = Int8.pack
    monkeypatch.setattr(Int8, "pack", lambda self, matrix: packed.append(len(matrix)) or pack(self, matrix))
    result = build(checkpoint, "--qformat", "int8_wo", "--max_accuracy_loss", 1000)
    assert result.exit_code == 0, result.output
    assert len(packed) == 3 * 7
    found = read_engine(checkpoint.parent / "engine").manifest.accuracy
    build_engine(checkpoint, checkpoint.parent / "plain", max_batch_size=1, max_seq_len=64)
    expected = evaluate(checkpoint.parent / "engine", reference_engine_dir=checkpoint.parent / "plain", max_tokens=256)
    assert found is not None
    assert expected.reference is not None
    assert found.num_tokens == expected.num_tokens == 4 * 63
    assert found.perplexity == pytest.approx(expected.perplexity)
    assert found.reference_perplexity == pytest.approx(expected.reference.perplexity)
    assert found.kl_divergence == pytest.approx(expected.reference.kl_divergence)
    assert found.kl_divergence > 0
    assert found.dataset.startswith("pydoc_data.topics")
    inspected = CliRunner().invoke(cli, ["inspect", str(checkpoint.parent / "engine"), "--json"])
    assert json.loads(inspected.stdout)["accuracy"]["kl_divergence"] == found.kl_divergence


def test_a_limit_out_of_reach_names_what_hurts(checkpoint: Path) -> None:
    result = build(checkpoint, "--qformat", "int8_wo", "--max_accuracy_loss", -50)
    assert result.exit_code == 1
    assert not (checkpoint.parent / "engine").exists()
    assert re.search(r"perplexity rises by .*over 252 tokens, and max_accuracy_loss is -50%", result.stderr)
    named = re.findall(r"(\S+) \(([\d.]+)\)", result.stderr)
    assert named[0][0] == "layers.1.mlp.down_proj"
    assert float(named[0][1]) > 2 * float(named[1][1])
    assert re.search(
        r"With the first \d+ in full precision it rises by -?[\d.]+%\. Choose another qformat", result.stderr
    )


def test_what_hurts_most_is_kept_where_that_is_enough(checkpoint: Path) -> None:
    """The limit lies between the losses with all products quantized and with one in full precision."""
    losses = []
    for more in ([], ["--quantize_override", "layers.1.mlp.down_proj=full_prec"]):
        assert build(checkpoint, "--qformat", "int8_wo", "--max_accuracy_loss", 1000, *more).exit_code == 0
        losses.append(_loss(checkpoint.parent / "engine"))
    assert losses[1] < losses[0]
    plain = read_engine(checkpoint.parent / "engine").manifest
    result = build(checkpoint, "--qformat", "int8_wo", "--max_accuracy_loss", (losses[0] + losses[1]) / 2)
    assert result.exit_code == 0, result.output
    assert re.search(r"kept in full precision: \d\.\d% of the weights .*: layers\.1\.mlp\.down_proj \(", result.stdout)
    assert re.search(r"a step reads [\d.]+ KiB more for them, at least [\d.]+ ms on this CPU", result.stdout)
    found = read_engine(checkpoint.parent / "engine").manifest
    assert found.accuracy is not None
    assert plain.accuracy is not None
    assert found.accuracy.perplexity == pytest.approx(plain.accuracy.perplexity)
    assert found.memory == plain.memory


def _loss(engine: Path) -> float:
    accuracy = read_engine(engine).manifest.accuracy
    assert accuracy is not None
    return 100 * (accuracy.perplexity / accuracy.reference_perplexity - 1)


def test_without_quantization_there_is_nothing_to_measure(checkpoint: Path) -> None:
    result = build(checkpoint, "--max_accuracy_loss", 1)
    assert "max_accuracy_loss is given, and nothing is quantized by this build: leave it out, or pass" in result.stderr
