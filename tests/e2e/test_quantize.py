"""``quantize`` on tiny models: its output builds, onnxruntime runs it, and schemes follow their papers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from click.testing import CliRunner, Result

from tests.models import NETWORK_FAMILIES, save_model, save_tiny_model, tiny_model, tiny_tokenizer
from tests.tolerances import assert_close
from trtllm_lite.builder import Checkpoint, build_engine, open_checkpoint
from trtllm_lite.cli import cli
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import ArgumentError, BuildError
from trtllm_lite.quantize.calibration.dataset import CalibrationText
from trtllm_lite.quantize.calibration.statistics import Statistics
from trtllm_lite.quantize.formats import Int8
from trtllm_lite.quantize.network import Recipe, inputs_to_observe, quantize_network, quantized_as
from trtllm_lite.quantize.schemes import SCHEMES, Needs
from trtllm_lite.quantize.schemes.folding import NotFoldableError, fold, source_of
from trtllm_lite.quantize.schemes.int8_sq import smoothing_factors
from trtllm_lite.quantize.schemes.workpiece import Workpiece
from trtllm_lite.runtime.sequence_runner import SequenceRunner
from trtllm_lite.workflows import calibration
from trtllm_lite.workflows import quantize as stage
from trtllm_lite.workflows.calibration import Calibration
from trtllm_lite.workflows.quantize import quantize_checkpoint

TEXT = "the lazy dog and 1 other fox, naïve, jump over 2 brown dogs: 你好; quick! " * 14
CALIBRATED = [name for name, scheme in SCHEMES.items() if scheme.needs > Needs.NOTHING]
LEAST_CORRELATION = {
    **{"int8_sq": 0.99, "fp8": 0.95, "fp8_gptq": 0.95, "fp8_rowwise_gptq": 0.95},
    **{"int4_awq": 0.9, "int4_gptq": 0.9, "w4a8_awq": 0.9},
}
EVEN = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}  # whole blocks of 16
LIMITS = {"max_batch_size": 2, "max_seq_len": 64, "gather_context_logits": True}


def converted(directory: Path, family: str = "llama", dtype: str = "float32", **fields: object) -> Path:
    save_tiny_model(family, directory / "model", **fields)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    (directory / "text.txt").write_text(TEXT, encoding="utf-8")
    return directory / "checkpoint"


def settings(directory: Path) -> Calibration:
    return Calibration(CalibrationText(directory / "text.txt", max_seq_length=48))


def logits(network: ir.Model, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    """onnxruntime's logits for a checkpoint's network."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # onnxruntime multiplies dequantized matrices in float32, as the network says, and not in int8.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(ir.to_proto(network).SerializeToString(), options)
    (found,) = session.run(["logits"], {value.name: feeds[value.name] for value in session.get_inputs()})
    return found


def feeds_of(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Two rows of tokens of the text, and empty caches."""
    tokens = np.array(tiny_tokenizer().encode(TEXT).ids[:40]).reshape(2, 20)
    caches = {
        str(value.name): np.zeros((2, value.shape[1], 32, value.shape[3]), np.float32)
        for value in checkpoint.model.graph.inputs
        if str(value.name).startswith("past_") and value.name != "past_lens"
    }
    positions = np.tile(np.arange(20), (2, 1))
    return {"input_ids": tokens, "position_ids": positions, "past_lens": np.zeros(2, np.int64), **caches}


@dataclass(frozen=True)
class Original:
    """A model before it is quantized: its folder, onnxruntime's logits for ``feeds``, the bytes of plain weights."""

    directory: Path
    feeds: dict[str, np.ndarray]
    logits: np.ndarray
    weights: int


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Original]:
    """Return a function that makes the model with matrices of a given type, once for each type."""

    @cache
    def original(dtype: str) -> Original:
        directory = tmp_path_factory.mktemp(dtype)
        checkpoint = open_checkpoint(converted(directory, "qwen2", dtype, **EVEN))
        weights = build_engine(checkpoint, directory / "plain", **LIMITS).memory.weights
        feeds = feeds_of(checkpoint)
        return Original(directory, feeds, logits(checkpoint.model, feeds), weights)

    return original


@pytest.mark.each_value
@pytest.mark.parametrize("qformat", CALIBRATED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_written_builds_and_is_standard_onnx(
    qformat: str, dtype: str, originals: Callable[[str], Original], tmp_path: Path
) -> None:
    """The engine computes what onnxruntime does with the quantized network, which is close to the original model."""
    original = originals(dtype)
    done: list[str] = []
    quantize_checkpoint(
        original.directory / "checkpoint",
        tmp_path / "quantized",
        Recipe(qformat, group_size=16),
        settings(original.directory),
        lambda stage, *_: done.append(stage),
    )
    assert {"calibrate", "quantize"} <= set(done)
    quantized = open_checkpoint(tmp_path / "quantized")
    feeds, before, after = original.feeds, original.logits, logits(quantized.model, original.feeds)
    assert np.corrcoef(before.ravel(), after.ravel())[0, 1] > LEAST_CORRELATION[qformat]
    manifest = build_engine(tmp_path / "quantized", tmp_path / "engine", **LIMITS)
    assert manifest.qformat == qformat == quantized_as(quantized.model)
    assert manifest.memory.weights < 0.8 * original.weights
    runner = SequenceRunner(tmp_path / "engine")
    tokens = feeds["input_ids"].astype(np.int32)
    computed = np.stack([np.concatenate(list(runner.logits(row, 7))) for row in tokens])
    assert np.std(computed - after) < 0.2 * np.std(before - after)  # another order of sums may round to another step


def test_build_quantizes_as_quantize_does(tmp_path: Path) -> None:
    """`build --qformat` gives the bytes of `quantize` and `build`; plan predicts its memory without calibration."""
    converted(tmp_path)
    common = ["--qformat", "int8_sq", "--calib_dataset", tmp_path / "text.txt", "--calib_max_seq_length", 48]
    source, engine = ["--checkpoint_dir", tmp_path / "checkpoint"], ["--max_seq_len", 64]
    run("quantize", *source, "--output_dir", tmp_path / "quantized", *common)
    run("build", "--checkpoint_dir", tmp_path / "quantized", "--output_dir", tmp_path / "two_steps", *engine)
    run("build", *source, "--output_dir", tmp_path / "one_step", *common, *engine)
    one, two = (tmp_path / name / "rank0.engine" for name in ("one_step", "two_steps"))
    assert one.read_bytes() == two.read_bytes()
    assert "weights of linear layers: int8_sq" in run("inspect", tmp_path / "quantized").stdout
    weights = read_engine(one).manifest.memory.weights
    assert f"{weights:,}" in run("plan", *source, "--qformat", "int8_sq", *engine).stdout
    with pytest.raises(BuildError, match=r"layers.0.attention.q_proj is to be quantized .* needs calibration"):
        build_engine(tmp_path / "checkpoint", tmp_path / "engine", qformat="fp8")
    again = ["build", "--checkpoint_dir", tmp_path / "quantized", "--output_dir", tmp_path / "e"]
    result = CliRunner().invoke(cli, [*map(str, again), "--qformat", "int8_wo"])
    assert "the checkpoint is quantized as int8_sq already, and int8_wo is asked for" in result.stderr


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("qformat", ["int8_wo", "fp8_rowwise", "int4_wo"])
def test_weights_that_are_not_finite_are_not_rounded(qformat: str, number: float, tmp_path: Path) -> None:
    """Without calibration, only rounding finds weights that are not finite."""
    model = tiny_model("llama", **EVEN)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 5] = number
    save_model(model, tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    recipe, message = Recipe(qformat, group_size=16), "layers.1.mlp.down_proj: the weights of output feature 3 are not"
    with pytest.raises(BuildError, match=message):
        quantize_checkpoint(tmp_path / "checkpoint", tmp_path / "out", recipe, Calibration(), lambda *_: None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max_seq_len", 129], "max_seq_len is 129, but the model's max_position_embeddings is 128"),
        (["--target", "sm_80"], "products of float8_e4m3fn activations are for sm_90a, not sm_80"),
    ],
)
def test_what_cannot_be_built_is_not_calibrated(
    arguments: list[object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = converted(tmp_path, dtype="bfloat16", **EVEN)
    monkeypatch.delattr(stage, "statistics_of")
    command = ["build", "--checkpoint_dir", source, "--output_dir", tmp_path / "e", "--qformat", "fp8", *arguments]
    result = CliRunner().invoke(cli, [str(word) for word in command])
    assert message in result.stderr


@pytest.mark.parametrize("command", ["quantize", "build"])
def test_an_output_that_cannot_be_written_is_told_before_calibration(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = converted(tmp_path), tmp_path / "taken"
    output.mkdir()
    (output / "thesis.txt").write_text("years of work")
    monkeypatch.delattr(stage, "statistics_of")
    arguments = [command, "--checkpoint_dir", source, "--output_dir", output, "--qformat", "fp8"]
    assert "but it holds other files" in CliRunner().invoke(cli, [str(word) for word in arguments]).stderr
    assert [path.name for path in output.iterdir()] == ["thesis.txt"]


def test_a_text_that_does_not_do_is_told_before_an_engine_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = converted(tmp_path)
    (tmp_path / "text.txt").write_text("too short")
    monkeypatch.delattr(calibration, "build_engine")
    with pytest.raises(ArgumentError, match=r"text\.txt has \d+ tokens in 1 sequence"):
        quantize_checkpoint(source, tmp_path / "out", Recipe("fp8"), settings(tmp_path), lambda *_: None)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


def test_the_command_says_what_was_not_smoothed(tmp_path: Path) -> None:
    source = ["--checkpoint_dir", converted(tmp_path), "--output_dir", tmp_path / "out", "--qformat", "int8_sq"]
    printed = run("quantize", *source, "--calib_dataset", tmp_path / "text.txt", "--calib_max_seq_length", 48).stdout
    assert "12 of 12 inputs (layers.0.attention.q_proj, …): smoothed" in printed


def foldable(family: str) -> set[str]:
    """The inputs in the first layer whose channels can be scaled."""
    without_gate = ("gpt2", "starcoder2", "gpt_neox", "arcee", "nemotron", "apertus", "jais2")
    plain = {family: {"q_proj", "up_proj", "o_proj"} for family in without_gate}
    plain |= {key: {"o_proj", "down_proj"} for key in ("olmo2", "olmo3")}  # there is no norm before these
    behind_one_norm = {family: {"q_proj", "o_proj", "down_proj"} for family in ("cohere", "cohere2")}
    behind_one_norm |= {family: {"q_proj", "o_proj"} for family in ("phi", "falcon")}
    no_norm_before = {"exaone4": {"o_proj", "down_proj"}}
    normed_values = {key: {"q_proj", "gate_proj", "down_proj"} for key in ("gemma4", "gemma4_unified")}
    normed_values["gemma3n"] = {"gate_proj", "down_proj"}  # the norm before attention is added to the stream, too
    known = {**plain, **behind_one_norm, **no_norm_before, **normed_values}
    return known.get(family, {"q_proj", "gate_proj", "o_proj", "down_proj"})


@pytest.mark.parametrize("family", [*NETWORK_FAMILIES, "one_to_one"])
def test_folding_changes_nothing(family: str, tmp_path: Path) -> None:
    """Every input that takes factors gets large random ones for its channels, and the logits stay the same."""
    fields = {"num_key_value_heads": 6} if family == "one_to_one" else {}
    family = "qwen2" if fields else family
    checkpoint = open_checkpoint(converted(tmp_path, family, **fields))
    feeds = feeds_of(checkpoint)
    expected = logits(checkpoint.model, feeds)
    folded = checkpoint.model.clone()
    work, random = Workpiece(folded.graph, lambda _: pytest.fail("statistics"), 128), np.random.default_rng(0)
    done = set()
    for x in {product.x: None for product in work.products}:
        readers = [product for product in work.products if product.x is x]
        try:
            source = source_of(work, x)
        except NotFoldableError:
            continue
        factors = source.shared(np.exp(random.uniform(-2, 2, readers[0].in_features)).astype(np.float32))
        fold(work, source, lambda factors=factors: factors)
        done.add(readers[0].name)
    work.finish()
    assert {name.rpartition(".")[2] for name in done if name.startswith("layers.0.")} == foldable(family)
    assert_close(logits(folded, feeds), expected)


def test_factors_are_those_of_the_paper() -> None:
    """Equation 4 with the best of ten alphas: a large alpha if x has strong outliers; factors of 1 if it has none."""
    rng = np.random.default_rng(0)
    weight, flat = rng.standard_normal((2, 50, 40)).astype(np.float32)
    x_max = np.exp(rng.uniform(0, 5, 40)).astype(np.float32)
    found = smoothing_factors(weight, [x_max], spread(x_max))
    by_alpha = [x_max**alpha / np.abs(weight).max(0) ** (1 - alpha) for alpha in np.arange(10) / 10]
    near = [np.allclose(found, factors, rtol=1e-4) for factors in by_alpha]
    assert near.index(True) >= 4
    signs, ones = np.sign(flat), np.ones(40, np.float32)
    np.testing.assert_array_equal(smoothing_factors(signs, [ones], np.sign(spread(ones))), ones)


def test_factors_follow_the_measure_that_tells_more() -> None:
    """Mean magnitudes serve better than maxima if tokens outside the sample have outliers in small channels."""
    rng = np.random.default_rng(0)
    weight, x_mean = rng.standard_normal((50, 40)).astype(np.float32), np.exp(np.linspace(0, 5, 40, dtype=np.float32))
    x_max, w_max = 200 * x_mean[::-1], np.abs(weight).max(0)
    found = smoothing_factors(weight, [x_max, x_mean], spread(x_mean))
    assert any(np.allclose(found, x_mean**alpha / w_max ** (1 - alpha), rtol=1e-4) for alpha in np.arange(10) / 10)


def test_some_rows_of_a_large_matrix_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the rows decides the alpha; the maximum in equation 4 is taken over all rows."""
    shapes, pack = list[tuple[int, ...]](), Int8.pack
    monkeypatch.setattr(Int8, "pack", lambda self, matrix: shapes.append(matrix.shape) or pack(self, matrix))
    rng = np.random.default_rng(0)
    weight = np.zeros((3 * 4096, 40), np.float32)
    weight[::3] = rng.standard_normal((4096, 40))
    weight[1] = w_max = 5 * np.abs(weight).max(0)
    x_max = np.exp(rng.uniform(0, 5, 40)).astype(np.float32)
    found = smoothing_factors(weight, [x_max], spread(x_max))
    assert set(shapes) == {(4096, 40)}
    assert any(np.allclose(found, x_max**alpha / w_max ** (1 - alpha), rtol=1e-4) for alpha in np.arange(10) / 10)


def spread(largest: np.ndarray) -> np.ndarray:
    """Rows whose channels have the maxima ``largest``."""
    return np.random.default_rng(0).uniform(-1, 1, (64, len(largest))).astype(np.float32) * largest


def test_smoothing_helps_where_a_channel_sticks_out(tmp_path: Path) -> None:
    """Rounding tokens to int8 hurts less once outliers have moved to the weights."""
    save_tiny_model("llama", tmp_path / "model")
    checkpoint = open_checkpoint(converted(tmp_path))
    for node in checkpoint.model.graph:
        if node.op_type == "RMSNormalization" and "final" not in str(node.name):
            value = node.inputs[1]
            scaled = value.const_value.numpy().copy()
            scaled[5] *= 60
            value.const_value = ir.tensor(scaled, name=value.name)
    feeds = feeds_of(checkpoint)
    expected = logits(checkpoint.model, feeds)
    inputs, _ = inputs_to_observe(checkpoint.model, Recipe("int8_sq"))
    flat = {name: np.ones(observed.features, np.float32) for name, observed in inputs.items()}
    errors = []
    for outlier in (1, 60):
        for name, largest in flat.items():
            largest[5] = outlier if name.endswith(("q_proj", "gate_proj")) else 1
        known = {name: Statistics(largest, largest, spread(largest)) for name, largest in flat.items()}
        network, _ = quantize_network(checkpoint.model, Recipe("int8_sq"), known.__getitem__)
        errors.append(np.abs(logits(network, feeds) - expected).mean())
    assert errors[1] < 0.7 * errors[0]


def test_overrides_choose_by_pattern(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(converted(tmp_path))
    overrides = (("layers.*.mlp.*", "int8_wo"), ("layers.1.*", "full_prec"), ("lm_head", "fp8_wo"))
    network, _ = quantize_network(checkpoint.model, Recipe("fp8_wo", overrides=overrides))
    assert quantized_as(network) == "fp8_wo,int8_wo,full_prec"
    kinds = {
        str(node.name): node.inputs[1].producer().inputs[0].producer()
        for node in network.graph
        if node.op_type == "MatMul"
    }
    dtypes = {name: "plain" if node is None else node.inputs[0].dtype.name for name, node in kinds.items()}
    assert dtypes["layers.0.attention.o_proj"] == dtypes["lm_head"] == "FLOAT8E4M3FN"
    assert dtypes["layers.2.mlp.up_proj"] == "INT8"
    assert dtypes["layers.1.attention.q_proj"] == dtypes["layers.1.mlp.down_proj"] == "plain"
    with_head, _ = quantize_network(checkpoint.model, Recipe("int8_wo", quantize_lm_head=True))
    assert sum(node.op_type == "DequantizeLinear" for node in with_head.graph) == 3 * 7 + 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((("layers.9.*", "full_prec"),), "no product of the network matches 'layers.9.*'"),
        ((("*.v_proj", "full_prec"),), r"0.attention.q_proj is to be int8_wo and layers.0.attention.v_proj full_prec"),
        ((("*", "full_prec"),), "int8_wo,full_prec, and every product is to stay full_prec: let some have another"),
        ((("*", "int3"),), "qformat is 'int3': expected one of full_prec, int8_wo"),
    ],
)
def test_overrides_that_do_not_do(tmp_path: Path, overrides: tuple[tuple[str, str], ...], message: str) -> None:
    checkpoint = open_checkpoint(converted(tmp_path))
    with pytest.raises(BuildError, match=message):
        quantize_network(checkpoint.model, Recipe("int8_wo", overrides=overrides))


@pytest.mark.parametrize("qformat", ["int8_sq", "int4_awq", "w4a8_awq"])
def test_a_channel_that_is_always_zero_names_layer_and_scheme(qformat: str, tmp_path: Path) -> None:
    checkpoint, recipe = open_checkpoint(converted(tmp_path, **EVEN)), Recipe(qformat, group_size=16)
    sizes = {name: observed.features for name, observed in inputs_to_observe(checkpoint.model, recipe)[0].items()}

    def statistics(name: str) -> Statistics:
        largest = np.ones(sizes[name], np.float32)
        largest[7] = name != "layers.1.mlp.gate_proj"
        return Statistics(largest, largest, spread(largest))

    network, _ = quantize_network(checkpoint.model, recipe, statistics)
    weight = next(value for name, value in network.graph.initializers.items() if "layers.1.mlp.up_proj" in str(name))
    with pytest.raises(BuildError, match=rf"^layers.1.mlp.gate_proj: 1 of its 64 .* number 7, .*{qformat} scales"):
        weight.const_value.numpy()


def test_nothing_to_quantize_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="qformat is full_prec, and nothing overrides it"):
        quantize_checkpoint(converted(tmp_path), tmp_path / "out", Recipe(), settings(tmp_path), lambda *_: None)
    assert not (tmp_path / "out").exists()
