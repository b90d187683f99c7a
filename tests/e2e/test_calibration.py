"""Calibration on tiny models: its statistics are those of the inputs of transformers' linear layers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tests.models import save_tiny_model, tiny_tokenizer
from tests.tolerances import assert_close
from trtllm_lite.builder import Checkpoint, build_engine, open_checkpoint
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import ArgumentError, BuildError, DeviceError
from trtllm_lite.plugins.channel_magnitudes.reference import reference as magnitudes
from trtllm_lite.quantize.calibration.calibrate import calibrate
from trtllm_lite.quantize.calibration.dataset import CalibrationText
from trtllm_lite.quantize.calibration.observed import Observed
from trtllm_lite.quantize.calibration.statistics import Accumulator, Statistics
from trtllm_lite.quantize.products import by_input, find_products, observed_input
from trtllm_lite.workflows import calibration as stage
from trtllm_lite.workflows import device
from trtllm_lite.workflows.calibration import Calibration, statistics_of

TEXT = "the lazy dog and 1 other fox, naïve, jump over 2 brown dogs: 你好; quick! " * 14
LENGTH = 40


def converted(family: str, directory: Path) -> tuple[PreTrainedModel, Checkpoint]:
    model = save_tiny_model(family, directory / "model")
    convert_checkpoint(str(directory / "model"), directory / "checkpoint")
    return model, open_checkpoint(directory / "checkpoint")


def text_file(directory: Path, content: str = TEXT, name: str = "text.txt") -> Path:
    (directory / name).write_text(content, encoding="utf-8")
    return directory / name


def settings(directory: Path, kept: Path | None = None) -> Calibration:
    return Calibration(CalibrationText(text_file(directory), max_seq_length=LENGTH), kept)


def inputs_of(checkpoint: Checkpoint) -> dict[str, Observed]:
    products = find_products(checkpoint.model.graph)
    return {name: observed_input(group) for name, group in by_input(products).items()}


def observe(checkpoint: Checkpoint, calibration: Calibration, gram: bool = True) -> dict[str, Statistics]:
    inputs = inputs_of(checkpoint)
    with statistics_of(checkpoint, inputs, calibration, gram, lambda *_: None) as store:
        return {
            name: Statistics(**{key: value.copy() for key, value in store.read(name).tensors().items()})
            for name in inputs
        }


def what_linear_layers_read(model: PreTrainedModel) -> list[np.ndarray]:
    """The inputs [tokens, features] of each linear layer, in the order of their first use."""
    found: dict[torch.nn.Module, list[np.ndarray]] = {}

    def note(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        found.setdefault(module, []).append(arguments[0].reshape(-1, arguments[0].shape[-1]).numpy())

    for module in model.modules():
        if isinstance(module, torch.nn.Linear | Conv1D):
            module.register_forward_pre_hook(note)
    ids = tiny_tokenizer().encode(TEXT).ids
    with torch.inference_mode():
        for first in range(0, len(ids), LENGTH):
            model(torch.tensor([ids[first : first + LENGTH]]))
    return [np.concatenate(rows) for rows in found.values()]


@pytest.mark.parametrize("family", ["llama", "gpt2", "cohere", "gemma2"])
def test_statistics_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model, checkpoint = converted(family, tmp_path)
    found = observe(checkpoint, settings(tmp_path))
    expected = what_linear_layers_read(model)
    unseen = set(found)
    for rows in expected:
        match = [name for name, statistics in found.items() if _are_close(statistics.abs_max, np.abs(rows).max(0))]
        assert len(match) == 1
        statistics = found[match[0]]
        unseen.discard(match[0])
        assert_close(statistics.abs_mean, np.abs(rows).mean(0), what="abs_mean")
        assert statistics.gram is not None
        assert_close(statistics.gram, rows.T @ rows / len(rows), what="gram")
        nearest = np.abs(statistics.sample[:, None] - rows[None]).max(2).min(1)
        assert nearest.max() < 1e-4 * np.abs(rows).max()
        assert len(statistics.sample) == 256 < len(rows)
    assert not unseen
    assert list(found)[: len(ROLES[family])] == [f"layers.0.{path}" for path in ROLES[family]]


ROLES = {
    "llama": ("attention.q_proj", "attention.o_proj", "mlp.gate_proj", "mlp.down_proj"),
    "gemma2": ("attention.q_proj", "attention.o_proj", "mlp.gate_proj", "mlp.down_proj"),
    "gpt2": ("attention.q_proj", "attention.o_proj", "mlp.up_proj", "mlp.down_proj"),
    "cohere": ("attention.q_proj", "attention.o_proj", "mlp.down_proj"),
}


def _are_close(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape and bool(np.abs(left - right).max() < 1e-4 * np.abs(right).max())


def _are_equal(left: Mapping[str, Statistics], right: Mapping[str, Statistics]) -> bool:
    return all(
        np.array_equal(value, right[name].tensors()[key])
        for name in left
        for key, value in left[name].tensors().items()
    )


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run observes what the first did not, in other passes; the statistics are the same."""
    _, checkpoint = converted("llama", tmp_path)
    whole = observe(checkpoint, settings(tmp_path))
    kept = settings(tmp_path, kept=tmp_path / "statistics")
    steps: list[tuple[int, int]] = []

    def limited(*arguments: Any) -> None:
        def count(_: str, done: int, total: int) -> None:
            steps.append((done, total))
            if interrupted and done == total // 2:
                raise KeyboardInterrupt

        wanted, observer, sequences, store, _ = arguments
        observer.budget = 60_000
        calibrate(wanted, observer, sequences, store, count)

    monkeypatch.setattr(stage, "calibrate", limited)
    interrupted = True
    with pytest.raises(KeyboardInterrupt) as interrupt:
        observe(checkpoint, kept)
    assert interrupt.value.__notes__ == [f"the same command continues from what --calib_dir {kept.directory} keeps"]
    with pytest.raises(KeyboardInterrupt) as interrupt:
        observe(checkpoint, settings(tmp_path))
    assert "is lost; with --calib_dir DIR a later run continues" in interrupt.value.__notes__[0]
    assert not (tmp_path / "statistics" / "engine").exists()
    first = steps.copy()
    steps.clear()
    interrupted = False
    assert _are_equal(observe(checkpoint, kept), whole)
    assert 0 < steps[-1][1] < first[-1][1]
    steps.clear()
    assert _are_equal(observe(checkpoint, kept), whole)
    assert steps == []
    other = Calibration(CalibrationText(text_file(tmp_path, TEXT + "!"), max_seq_length=LENGTH), kept.directory)
    with pytest.raises(ArgumentError, match="does not hold statistics of this checkpoint, text and settings"):
        observe(checkpoint, other)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("years of work")
    with pytest.raises(ArgumentError, match="thesis holds other files than statistics of a calibration: name another"):
        observe(checkpoint, Calibration(other.text, tmp_path / "thesis"))


def test_a_run_that_failed_before_it_had_statistics_leaves_the_directory_free(tmp_path: Path) -> None:
    _, checkpoint = converted("llama", tmp_path)
    kept = settings(tmp_path, kept=tmp_path / "statistics")
    with pytest.raises(ArgumentError, match="or lower calib_size"):
        observe(checkpoint, replace(kept, text=replace(kept.text, size=999)))
    observe(checkpoint, kept)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "key").write_text("a key of mine")
    with pytest.raises(ArgumentError, match="does not hold statistics"):
        observe(checkpoint, replace(kept, directory=tmp_path / "other"))
    assert (tmp_path / "other" / "key").read_text() == "a key of mine"


class MadeUpRows:
    """Made-up rows in the form in which an engine shows its activations."""

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        self._rows = np.array(rows, np.float32)

    def __len__(self) -> int:
        return len(self._rows)

    def magnitudes(self) -> np.ndarray:
        return magnitudes([self._rows], {})[0]

    def take(self, begin: int, end: int) -> np.ndarray:
        return self._rows[begin:end]


def test_a_value_that_is_not_finite_names_the_layer() -> None:
    accumulator = Accumulator("layers.1.mlp.down_proj", 3, np.array([0]))
    with pytest.raises(BuildError, match=r"layers.1.mlp.down_proj: its input is not finite .*channel 2"):
        accumulator.add(MadeUpRows([[1, 2, np.nan]]))


def test_a_channel_that_is_always_zero_names_layer_and_scheme() -> None:
    accumulator = Accumulator("layers.1.mlp.down_proj", 3, np.array([0]))
    accumulator.add(MadeUpRows([[1, 0, 3], [2, 0, 0]]))
    message = r"^layers.0.mlp.up_proj: 1 of its 3 input .* number 1, .*int8_sq scales .* 'layers.0.mlp.\*=full_prec'"
    with pytest.raises(BuildError, match=message):
        accumulator.finish().check_channels("layers.0.mlp.up_proj", "int8_sq")


def test_sequences_are_no_longer_than_the_model_takes(tmp_path: Path) -> None:
    _, checkpoint = converted("llama", tmp_path)
    long = Calibration(CalibrationText(text_file(tmp_path), max_seq_length=200))
    with pytest.raises(ArgumentError, match="calib_max_seq_length is 200, and the model takes 128 tokens: lower it"):
        observe(checkpoint, long)


def test_devices_have_names_and_threads_if_they_are_cpus() -> None:
    with pytest.raises(ArgumentError, match="device is 'gpu': expected cpu or cuda"):
        Calibration(device="gpu")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="num_threads is given, and the engine runs on a GPU: leave it out"):
        Calibration(device="cuda", num_threads=2)


def test_a_gpu_is_needed_to_calibrate_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_device() -> dict[str, str]:
        raise DeviceError("no driver")

    monkeypatch.setattr(device._core, "cuda_device", no_device)
    _, checkpoint = converted("llama", tmp_path)
    with pytest.raises(DeviceError, match="the device is to be cuda: no driver; or choose the device cpu"):
        observe(checkpoint, replace(settings(tmp_path), device="cuda"))


def test_observers_are_for_known_products(tmp_path: Path) -> None:
    _, checkpoint = converted("llama", tmp_path)
    with pytest.raises(BuildError, match=r"nowhere.q_proj: the build finds no product"):
        build_engine(checkpoint, tmp_path / "engine", observed={"nowhere.q_proj": ["nowhere.q_proj"]})


def encode(text: str) -> list[int]:
    return list(text.encode())


def test_sequences_are_drawn_by_the_seed(tmp_path: Path) -> None:
    lines = '{"text": "' + "a" * 50 + '"}\n\n"' + "b" * 70 + '"\n{"id": 1, "text": "' + "c" * 90 + '"}\n'
    path = text_file(tmp_path, lines, "text.jsonl")
    everything = CalibrationText(path, max_seq_length=41).sequences(encode, [7])
    assert [len(part) for part in everything] == [41, 11, 41, 31, 41, 41, 11]
    assert all(part[0] == 7 for part in everything)
    assert b"".join(bytes(part[1:].tolist()) for part in everything) == b"a" * 50 + b"b" * 70 + b"c" * 90
    drawn = [CalibrationText(path, 3, 41, seed).sequences(encode, [7]) for seed in (0, 0, 1)]
    assert len(drawn[0]) == 3
    assert all(np.array_equal(*pair) for pair in zip(drawn[0], drawn[1], strict=True))
    assert not all(np.array_equal(*pair) for pair in zip(drawn[0], drawn[2], strict=True))


def test_lines_of_jsonl_end_at_newlines_alone(tmp_path: Path) -> None:
    """In JSON, other line separators may stand unescaped in a string."""
    path = text_file(tmp_path, '"one\u2028text"\r\n{"text": "another\x85"}\n', "text.jsonl")
    assert CalibrationText(path).texts() == ["one\u2028text", "another\x85"]


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        ("a.txt", " \n\n", {}, "the calibration dataset .* is empty"),
        ("a.txt", "short", {}, "too small: .* has 6 tokens in 1 sequence of at most 40, .*: pass more text$"),
        (
            "a.txt",
            TEXT,
            {"size": 99},
            "too small: .*at least 64 tokens, and at least 99 sequences: .* or lower calib_size",
        ),
        ("a.json", f'["{TEXT}"]', {}, r"calib_dataset is .*: expected a file whose name ends in .txt or .jsonl"),
        ("a.jsonl", '{"text": 3}', {}, r"line 1 is \{'text': 3\}: expected a text"),
        ("a.jsonl", '"ok"\n{"text": "\\ud800"}', {}, r"line 2 has '.ud800', half of a character: remove it"),
        ("a.jsonl", '"ok"\n\nnot json', {}, "line 3 is not JSON: 'not json': expected a text"),
        ("a.txt", TEXT, {"size": 0}, "calib_size is 0: expected a whole number above 0"),
        ("a.txt", TEXT, {"seed": -1}, "calib_seed is -1: expected a whole number, 0 or above"),
        ("a.txt", TEXT, {"size": 1}, "40 tokens in 1 sequence of at most 40, .*: raise calib_size or calib_max_seq_"),
        ("a.txt", TEXT, {"max_seq_length": 1}, "max_seq_length is 1, and prompts begin with 1 token: raise calib_"),
    ],
)
def test_datasets_that_do_not_do(tmp_path: Path, name: str, content: str, fields: dict[str, Any], message: str) -> None:
    path = text_file(tmp_path, content, name)
    with pytest.raises(ArgumentError, match=message):
        CalibrationText(path, **{"max_seq_length": LENGTH, **fields}).sequences(encode, [0])
