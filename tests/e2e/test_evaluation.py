"""``eval`` on tiny models: perplexity and divergence equal those computed from transformers' logits."""

import copy
import json
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from transformers import PreTrainedModel

from tests.models import quantize_linear_layers, save_tiny_model, tiny_tokenizer
from trtllm_lite.builder import build_engine
from trtllm_lite.cli import cli
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import EngineError
from trtllm_lite.evaluation import evaluate
from trtllm_lite.evaluation.default_text import default_text
from trtllm_lite.evaluation.kept_logits import KeptLogits

LIMITS = {"max_batch_size": 3, "max_input_len": 50, "max_seq_len": 70, "max_num_tokens": 32, "tokens_per_block": 16}
TEXT = "the lazy dog and 1 other fox, naïve, jump over 2 brown dogs: 你好; quick! " * 20
WINDOW = LIMITS["max_seq_len"]


@dataclass
class Built:
    """Engines of a tiny model in full precision and in int8, and the results of transformers."""

    directory: Path
    model: PreTrainedModel
    text: Path

    @property
    def engine(self) -> Path:
        return self.directory / "engine"

    @property
    def quantized(self) -> Path:
        return self.directory / "quantized"


def build(family: str, directory: Path) -> Built:
    model = save_tiny_model(family, directory / "model")
    convert_checkpoint(str(directory / "model"), directory / "checkpoint")
    build_engine(directory / "checkpoint", directory / "engine", **LIMITS)
    # One engine computes all rows of logits at once, the other a few at a time, in smaller steps.
    limits = {**LIMITS, "gather_context_logits": True}
    build_engine(directory / "checkpoint", directory / "quantized", qformat="int8_wo", **limits)
    (directory / "text.txt").write_text(TEXT, encoding="utf-8")
    return Built(directory, model, directory / "text.txt")


@pytest.fixture(scope="module", params=["llama", "mistral", "gemma2"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build("llama", tmp_path_factory.mktemp("one"))


def expected_log_probs(model: PreTrainedModel, window: int = WINDOW) -> tuple[np.ndarray, np.ndarray]:
    """transformers' log probabilities [tokens, vocabulary], and the tokens that follow."""
    ids = tiny_tokenizer().encode(TEXT).ids
    windows = torch.tensor(ids[: len(ids) // window * window]).reshape(-1, window)
    with torch.inference_mode():
        logits = model(windows[:, :-1]).logits.double()
    log_probs = logits.log_softmax(-1).flatten(0, 1).numpy()
    return log_probs, windows[:, 1:].flatten().numpy()


def test_figures_are_those_of_transformers(built: Built) -> None:
    log_p, targets = expected_log_probs(built.model)
    log_q, _ = expected_log_probs(quantize_linear_layers(copy.deepcopy(built.model), "int8_wo"))
    rows = np.arange(len(targets))
    result = evaluate(built.quantized, built.text, reference_engine_dir=built.engine)
    assert (result.num_tokens, result.window) == (len(targets), WINDOW)
    assert result.num_windows == len(targets) // (WINDOW - 1) > 2
    perplexity, reference = (np.exp(-table[rows, targets].mean()) for table in (log_q, log_p))
    assert result.reference is not None
    assert result.perplexity == pytest.approx(perplexity, rel=1e-4)
    assert result.reference.perplexity == pytest.approx(reference, rel=1e-4)
    assert result.reference.perplexity_increase == pytest.approx(perplexity / reference - 1, abs=1e-4)
    divergence = (np.exp(log_p) * (log_p - log_q)).sum(1).mean()
    assert result.reference.kl_divergence == pytest.approx(divergence, rel=2e-2)
    agreement = (log_p.argmax(1) == log_q.argmax(1)).mean()
    assert result.reference.top1_agreement == pytest.approx(agreement, abs=1 / len(targets))


def test_a_reference_computes_once_what_it_keeps(llama: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = evaluate(llama.quantized, llama.text, reference_engine_dir=llama.engine)
    kept = {"reference_engine_dir": llama.engine, "kept_logits": tmp_path}
    assert evaluate(llama.quantized, llama.text, **kept) == plain
    assert {path.suffix for path in tmp_path.iterdir()} == {".npy"}
    monkeypatch.setattr(KeptLogits, "_keep", lambda *_: pytest.fail("computed again"))
    assert evaluate(llama.quantized, llama.text, **kept) == plain


def test_an_engine_does_not_diverge_from_itself(llama: Built) -> None:
    result = evaluate(llama.engine, llama.text, reference_engine_dir=llama.engine).reference
    assert result is not None
    assert (result.perplexity_increase, result.kl_divergence, result.top1_agreement) == (0, 0, 1)


def test_window_and_max_tokens(llama: Built) -> None:
    done: list[tuple[str, int, int]] = []
    result = evaluate(llama.engine, llama.text, window=20, max_tokens=59, progress=lambda *step: done.append(step))
    assert (result.num_windows, result.num_tokens, result.reference) == (2, 2 * 19, None)
    log_p, targets = expected_log_probs(llama.model, 20)
    picked = log_p[np.arange(2 * 19), targets[: 2 * 19]]
    assert result.perplexity == pytest.approx(np.exp(-picked.mean()), rel=1e-4)
    assert done == [("evaluate", 1, 2), ("evaluate", 2, 2)]


def test_the_default_text_has_50000_words_and_is_not_that_of_calibration(llama: Built) -> None:
    calibration = resources.files("trtllm_lite.quantize.calibration").joinpath("text.txt").read_text(encoding="utf-8")
    assert 30_000 < len(calibration.encode()) < 60_000
    assert len(default_text().split()) > 50_000
    assert not set(calibration.split("\n\n")) & set(default_text().split("\n\n")) - {""}
    result = evaluate(llama.engine, max_tokens=WINDOW)
    assert result.num_tokens == WINDOW - 1
    assert result.dataset.startswith("pydoc_data.topics of Python 3.")


def run(built: Built, *arguments: object, dataset: Path | None = None) -> Result:
    command = ["eval", "--engine_dir", built.engine, "--dataset", dataset or built.text, *arguments]
    return CliRunner().invoke(cli, [str(part) for part in command])


def test_the_command_prints_a_table_and_json(llama: Built) -> None:
    table = run(llama, "--reference_engine_dir", llama.engine)
    assert table.exit_code == 0, table.output
    assert "perplexity of the reference" in table.stdout
    assert "100.00%" in table.stdout
    printed = json.loads(run(llama, "--json").stdout)
    assert printed["reference"] is None
    assert f"{printed['perplexity']:.4f}" in table.stdout


def test_accuracy_is_drawn_against_size(llama: Built, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ("--engine_dir", llama.quantized, "--reference_engine_dir", llama.engine, "--html", page, "--json")
    both = run(llama, *arguments)
    assert both.exit_code == 0, both.output
    whole, quantized = json.loads(both.stdout)
    text = page.read_text()
    assert text.count('<svg class="chart"') == 3
    assert text.count('<circle class="dot') == 3 + 2 + 2  # the reference has only a perplexity
    for result in (whole, quantized):
        assert f"{result['perplexity']:.4f}" in text
    assert quantized["reference"]["perplexity"] == whole["perplexity"]
    refused = run(llama, "--html", tmp_path / "absent" / "page.html")
    assert refused.exit_code == 1
    assert "choose another file for --html" in refused.stderr


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (" \n", (), "is empty: pass a file with text"),
        ("\udcff", (), r"is not UTF-8 \(byte 0\)"),
        ("the fox", (), "tokens of text fill no window of 70 tokens: pass a longer text, or lower --window"),
        (TEXT, ("--max_tokens", 30), "30 tokens of text fill no window of 70 tokens: raise --max_tokens"),
        (TEXT, ("--window", 1), "a window of 1 tokens is too short: pass 2 or more"),
        (TEXT, ("--window", 71), "sequences of 71 tokens exceed max_seq_len 70"),
        (TEXT, ("--window", 0), "window is 0: expected a whole number above 0"),
    ],
)
def test_texts_and_windows_that_do_not_do(
    llama: Built, tmp_path: Path, content: str, arguments: tuple[object, ...], message: str
) -> None:
    (tmp_path / "text.txt").write_text(content, encoding="utf-8", errors="surrogateescape")
    result = run(llama, *arguments, dataset=tmp_path / "text.txt")
    assert result.exit_code == 1
    assert re.search(message, result.stderr)


def test_a_file_that_is_not_there(llama: Built, tmp_path: Path) -> None:
    assert "cannot read the dataset" in run(llama, dataset=tmp_path / "none.txt").stderr


def test_engines_of_different_models_are_not_compared(llama: Built, tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model", vocab_size=401)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **LIMITS)
    with pytest.raises(EngineError, match=r"the tokenizers of engine and reference differ .*397 and 401"):
        evaluate(llama.engine, llama.text, reference_engine_dir=tmp_path / "engine")


def test_an_engine_without_a_tokenizer_reads_no_text(llama: Built, tmp_path: Path) -> None:
    llama.model.save_pretrained(tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **LIMITS)
    with pytest.raises(EngineError, match="has no tokenizer to read a text with"):
        evaluate(tmp_path / "engine", llama.text)
