"""Options of quantization that the chosen scheme does not read are errors, and schemes declare what they do read."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.builder.networks import Shape, network
from tests.unit.quantize.made_up import made_up
from trtllm_lite.cli import cli
from trtllm_lite.quantize.network import Recipe, quantize_network
from trtllm_lite.quantize.schemes import SCHEMES, Needs
from trtllm_lite.quantize.schemes.scheme import Scheme

CACHE = "--kv_cache_dtype int8"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("quantize --qformat int8_wo --calib_size 4", "--calib_size is given, and int8_wo needs no calibration"),
        ("quantize --qformat int8_wo --calib-dir d", "--calib_dir is given, and int8_wo needs no calibration"),
        ("quantize --qformat fp8_rowwise --num_threads 1", "--num_threads is given, and fp8_rowwise needs no"),
        (f"quantize {CACHE} --kv_cache_scale 1 --calib_seed 4", "--calib_seed is given, and full_prec,kv_cache_int8"),
        (f"quantize {CACHE} --kv_cache_scale 1 --calib_size 4", "or a kv_cache_dtype without kv_cache_scale"),
        (f"quantize {CACHE} --quantize_lm_head", "--quantize_lm_head is given, and qformat is full_prec: leave it"),
        ("quantize --qformat int8_sq --group_size 128", "--group_size is given, and int8_sq stores no weights in"),
        (
            "quantize --autoq_format int4_wo,fp8_wo --auto_quantize_bits 5 --calib_max_seq_length 9",
            "--calib_max_seq_length is given, and int4_wo or fp8_wo needs no calibration",
        ),
        ("build --group_size 64", "--group_size is given, and full_prec stores no weights in groups: leave it out, or"),
        ("build --calib_dataset x.txt --qformat int4_wo", "--calib_dataset is given, and int4_wo needs no calibration"),
        ("build --device cpu --qformat fp8_wo", "--device is given, and fp8_wo needs no calibration: leave it out, or"),
        ("build --strip_plan --calib_size 8 --qformat fp8", "--calib_size is given, and an engine of --strip_plan has"),
        ("build --strip_plan --max_accuracy_loss 1 --qformat fp8", "--max_accuracy_loss is given, and an engine of"),
        ("plan --qformat fp8 --group_size 64", "--group_size is given, and fp8 stores no weights in groups"),
    ],
)
def test_an_option_that_nothing_reads_is_an_error(command: str, message: str, tmp_path: Path) -> None:
    assert message in _error_of(command, tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "build --qformat int8_wo --max_accuracy_loss nan",
        "quantize --autoq_format int8_wo --auto_quantize_bits nan",
        "quantize --kv_cache_dtype int8 --kv_cache_scale inf",
    ],
)
def test_numbers_are_finite(command: str, tmp_path: Path) -> None:
    assert f"{command.split()[-1]} is not a finite number" in _error_of(command, tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        f"quantize --qformat int8_wo {CACHE} --calib_size 4 --calib_max_seq_length 9 --calib_seed 1 --num_threads 1",
        "quantize --autoq_format int8_wo,fp8_wo --auto_quantize_bits 9 --calib_dataset x --calib_dir d --device cpu",
        "quantize --autoq_format int8_wo --auto_quantize_bits 9 --quantize_lm_head",
        "quantize --quantize_override layers.0.*=w4a8_awq --group_size 64 --calib_size 4",
        "build --qformat int8_wo --max_accuracy_loss 1 --device cpu",
        "build --qformat int4_wo --strip_plan --group_size 64",
        "plan --qformat int4_awq --group_size 64 --num_threads 2",
    ],
)
def test_options_that_are_read_are_not(command: str, tmp_path: Path) -> None:
    assert "expected a checkpoint directory, but absent does not exist" in _error_of(command, tmp_path)


def _error_of(command: str, directory: Path) -> str:
    name, *options = command.split()
    output = [] if name == "plan" else ["--output_dir", str(directory / "out")]
    result = CliRunner().invoke(cli, [name, "--checkpoint_dir", "absent", *output, *options])
    assert list(directory.iterdir()) == []
    return result.stderr


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_schemes_say_what_they_read(scheme: Scheme) -> None:
    """Shapes of scales follow the group size only where weights are in groups; statistics are read only as needed."""
    model, read = network(Shape(heads=4, head_dim=12, hidden=32, inter=48)), list[str]()
    known = made_up(model)

    def shapes(size: int) -> list[object]:
        recipe = Recipe(scheme.name, group_size=size)
        quantized, _ = quantize_network(model, recipe, lambda name: read.append(name) or known(name))
        tensors = [value.const_value for value in quantized.graph.initializers.values() if value.const_value]
        for tensor in tensors:
            tensor.numpy()
        return [tuple(tensor.shape) for tensor in tensors]

    assert (shapes(8) != shapes(16)) == scheme.in_groups
    assert bool(read) == (scheme.needs > Needs.NOTHING)
