"""Classifiers: encoders whose row of a text goes through a head, to scores of labels."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner

from tests.classifiers import SmallHead
from tests.e2e.llm import random_prompts
from tests.encoders import expected_rows, write_pooling
from tests.models import VOCAB_SIZE, save_tiny_model
from tests.tolerances import assert_close
from trtllm_lite._core import Engine
from trtllm_lite.builder import build_engine
from trtllm_lite.cli import cli
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.format import ENGINE_FILE
from trtllm_lite.errors import ArgumentError, BuildError, EngineError
from trtllm_lite.runtime.sequence_runner import SequenceRunner
from trtllm_lite.runtime.session.embedder import Embedder
from trtllm_lite.runtime.session.limits import RunnerOptions
from trtllm_lite.runtime.session.opening import open_model
from trtllm_lite.workflows.inspect import inspect_path

LIMITS = {"max_batch_size": 5, "max_input_len": 64, "max_seq_len": 64, "max_num_tokens": 100}
# Texts contain no padding tokens, for which transformers has no positions.
TEXTS = [[3 if token in (1, 2) else token for token in text] for text in random_prompts(seed=4, count=23)]


def _small_classifier(directory: Path, family: str, num_labels: int, *, first: bool) -> np.ndarray:
    """Write the checkpoint of a classifier to ``directory``; returns what it has to compute for TEXTS."""
    model = save_tiny_model(family, directory / "model")
    write_pooling(
        directory / "model", normalize=False, pooling_mode_mean_tokens=not first, pooling_mode_cls_token=first
    )
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype="float32")
    head = SmallHead.random(model.config.hidden_size, num_labels)
    head.append_to(directory / "checkpoint")
    return head.scores(expected_rows(model, TEXTS, first=first))


@pytest.mark.parametrize(("family", "num_labels", "first"), [("bert", 1, True), ("modernbert", 3, False)])
def test_an_engine_computes_the_scores_of_its_network(
    family: str, num_labels: int, first: bool, tmp_path: Path
) -> None:
    """Against transformers' hidden states and numpy's head; onnxruntime computes the network itself, padded."""
    expected = _small_classifier(tmp_path, family, num_labels, first=first)
    ids = np.full((len(TEXTS), max(map(len, TEXTS))), VOCAB_SIZE - 1)
    for row, text in enumerate(TEXTS):
        ids[row, : len(text)] = text
    positions = np.ascontiguousarray(np.broadcast_to(np.arange(ids.shape[1]), ids.shape))
    session = onnxruntime.InferenceSession(str(tmp_path / "checkpoint" / "network.onnx"))
    feed = {"input_ids": ids, "position_ids": positions, "seq_lens": np.array([len(text) for text in TEXTS])}
    assert_close(session.run(["scores"], feed)[0], expected, what="scores of the network")
    manifest = build_engine(tmp_path / "checkpoint", tmp_path / "engine", **LIMITS)
    assert manifest.module.kind == "text_classifier"
    assert [str(port) for port in manifest.module.outputs] == [f"scores float32 [num_seqs, {num_labels}]"]
    model = open_model(tmp_path / "engine", 0, RunnerOptions())
    assert isinstance(model, Embedder)
    try:
        texts = [np.array(text, np.int32) for text in TEXTS]
        together = model.embed(texts)
        assert_close(together, expected, what="scores")
        np.testing.assert_array_equal(np.concatenate([model.embed([text]) for text in texts]), together)
    finally:
        model.close()


@pytest.fixture(scope="module")
def classifier_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the ``checkpoint`` and the ``engine`` of a BERT that tells two labels apart."""
    directory = tmp_path_factory.mktemp("classifier")
    _small_classifier(directory, "bert", 2, first=True)
    limits = [f"--{name}={value}" for name, value in LIMITS.items()]
    command = ["build", "--checkpoint_dir", str(directory / "checkpoint"), "--output_dir", str(directory / "engine")]
    result = CliRunner().invoke(cli, [*command, *limits])
    assert result.exit_code == 0, result.output
    (directory / "output.txt").write_text(result.output)
    return directory


def test_a_build_tells_how_to_classify(classifier_dir: Path) -> None:
    output = (classifier_dir / "output.txt").read_text().splitlines()
    directory = str(classifier_dir / "engine")
    assert output[-1] == f"next: in Python, LLM({directory!r}).classify(TEXTS)"


def test_the_head_is_fused(classifier_dir: Path) -> None:
    found = inspect_path(classifier_dir / "engine")
    (rowwise,) = [item for item in found.fusions if item.pass_name == "rowwise"]
    assert rowwise.not_fused["head.tanh"] == "Tanh run as Rowwise: 480 bytes a text in float32"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache_dtype": "float16"}, "kv_cache_dtype is float16: encoders have no KV cache"),
        ({"max_beam_width": 2}, "max_beam_width is 2: encoders generate nothing"),
        ({"pp_size": 2}, "pp_size is 2: encoders run on one device only"),
        ({"max_num_tokens": 60}, "max_num_tokens is 60, below max_input_len 64"),
    ],
)
def test_builds_of_what_classifiers_lack_are_refused(
    classifier_dir: Path, options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=message):
        build_engine(classifier_dir / "checkpoint", tmp_path / "engine", **{**LIMITS, **options})


def test_a_classifier_generates_nothing(classifier_dir: Path) -> None:
    with pytest.raises(ArgumentError, match="is the engine of an encoder"):
        SequenceRunner(classifier_dir / "engine")


def test_the_runtime_reads_the_engine_back(classifier_dir: Path) -> None:
    assert Engine(str(classifier_dir / "engine" / ENGINE_FILE)).manifest


def test_a_classifier_is_no_encoder_beside_a_decoder(classifier_dir: Path, tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    (tmp_path / "engine").mkdir()
    for path in (classifier_dir / "engine").iterdir():
        (engine / path.name).hardlink_to(path)
    (engine / "text_encoder").symlink_to(classifier_dir / "engine")
    with pytest.raises(EngineError, match="text_encoder is the engine of a text classifier: there is room for that of"):
        inspect_path(engine)
