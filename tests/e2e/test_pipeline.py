"""The commands in sequence on a tiny model, and the errors that users see."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.models import save_tiny_model
from trtllm_lite.cli import cli
from trtllm_lite.errors import EngineError
from trtllm_lite.runtime import ModelRunner

LIMITS = ("--max_batch_size", "2", "--max-input-len", "40", "--max_seq_len", "64")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def run_well(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def failure(*arguments: object) -> str:
    """The message of a command that must fail with exit code 1 and without a traceback."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    notes = ("Warning: ", "the target is ")
    message = [line for line in result.stderr.splitlines() if not line.startswith(notes)]
    assert len(message) == 1
    assert message[0].startswith("Error: ")
    return message[0]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with model/, checkpoint/ and engine/, the latter two made by commands."""
    directory = tmp_path_factory.mktemp("pipeline")
    save_tiny_model("llama", directory / "model")
    converted = run_well("convert", "--model_dir", directory / "model", "--output-dir", directory / "checkpoint")
    assert "LlamaForCausalLM" in converted
    assert "next: trtllm-lite build" in converted
    compiled = run_well(
        "build", "--checkpoint_dir", directory / "checkpoint", "--output_dir", directory / "engine", *LIMITS
    )
    assert "next: trtllm-lite generate" in compiled
    return directory


@pytest.fixture
def engine(built: Path, tmp_path: Path) -> Path:
    """A copy of the engine that a test may damage."""
    copy = tmp_path / "engine"
    copy.mkdir()
    for file in (built / "engine").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def generate(engine: Path, *arguments: object) -> tuple[object, ...]:
    prompt = () if "--prompt" in arguments else ("--prompt", "the quick fox")
    return ("generate", "--engine_dir", engine, *prompt, *arguments)


def test_plan_predicts_what_the_engine_says(built: Path) -> None:
    predicted = json.loads(run_well("plan", "--checkpoint_dir", built / "checkpoint", *LIMITS, "--json"))
    found = json.loads(run_well("inspect", built / "engine", "--json"))["memory"]
    assert (predicted["weights"], predicted["kv_cache"]) == (found["weights"], found["kv_cache"])
    assert "kv_cache" in run_well("plan", "--checkpoint_dir", built / "checkpoint", *LIMITS)


def test_inspect_shows_limits_operators_and_fusions(built: Path) -> None:
    shown = run_well("inspect", built / "engine")
    assert all(word in shown for word in ("max_seq_len", "PagedAttention", "merge_qkv", "not fused by", "weights"))
    assert "checkpoint" in run_well("inspect", built / "checkpoint")


def test_generate_streams_what_the_runner_generates(built: Path) -> None:
    runner = ModelRunner.from_dir(built / "engine")
    drawn = {"temperature": 0.9, "top_p": 1.0, "random_seed": 5}
    flags_of_draw = [part for name, value in drawn.items() for part in (f"--{name}", value)]
    for flags, arguments in ((["--chat"], {"chat": True}), (flags_of_draw, drawn)):
        expected = runner.generate("the quick fox", max_new_tokens=20, end_id=-1, **arguments)
        streamed = run_well(*generate(built / "engine", "--max_new_tokens", 20, "--end_id", -1, *flags))
        assert streamed == expected + "\n"


def test_bench_latency(built: Path, tmp_path: Path) -> None:
    shape = ("--input_len", 16, "--output_len", 6, "--repeats", 1, "--batch_size", 2)
    report = ("--json", tmp_path / "latency.json", "--compare_transformers", built / "model")
    shown = run_well("bench", "latency", "--engine_dir", built / "engine", *shape, *report)
    assert "decode, × transformers" in shown
    assert "goal" not in shown
    written: dict[str, Any]
    (written,) = json.loads((tmp_path / "latency.json").read_text())
    figures = written["figures"]
    # A token's time is the difference of two runs, which may be negative on a busy machine if tokens are few.
    differences = {"inter_token_latency_s", "decode_tokens_per_s", "fraction_of_floor", "memory_overhead_bytes"}
    assert differences <= figures.keys()
    assert not {name: value for name, value in figures.items() if value <= 0 and name not in differences}
    assert figures["prefill_tokens_per_s"] == pytest.approx(32 / figures["time_to_first_token_s"])
    assert figures["peak_memory_bytes"] > figures["weight_bytes"]
    assert written["shape"]["batch_size"] == 2
    assert written["baseline"]["decode_tokens_per_s"] > 0


def test_bench_throughput(built: Path) -> None:
    shape = ("--num_requests", 5, "--input_len", 20, "--output_len", 8)
    assert "output tokens per step" in run_well("bench", "throughput", "--engine_dir", built / "engine", *shape)


def test_a_baseline_that_cannot_run_is_an_error(built: Path, tmp_path: Path) -> None:
    shape = ("--input_len", 4, "--output_len", 2, "--repeats", 1)
    arguments = ("bench", "latency", "--engine_dir", built / "engine", *shape, "--compare_transformers")
    assert "does not exist" in failure(*arguments, tmp_path / "absent")
    assert "transformers could not run" in failure(*arguments, tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max_new_tokens", 64), "exceeds max_seq_len (64 tokens): ask for at most"),
        (("--prompt", "word " * 60), "exceeds max_input_len 40"),
        (("--prompt", ""), "prompt 0 is empty"),
        (("--temperature", -1), "temperature must be from 0.01 to 100, not -1"),
        (("--max_new_tokens", 4, "--end_id", 5000), "end_ids must hold token ids from 0 to 396, not 5000"),
        (("--max_new_tokens", 0), "max_new_tokens is 0"),
        (("--num_threads", 0), "num_threads is 0"),
        (
            ("--num_beams", 16, "--max_new_tokens", 4),
            "16 beams exceeds max_beam_width 2: ask for fewer",
        ),
    ],
)
def test_bad_requests(built: Path, flags: tuple[object, ...], message: str) -> None:
    assert message in failure(*generate(built / "engine", *flags))


def test_limits_that_contradict_each_other(built: Path, tmp_path: Path) -> None:
    arguments = ("build", "--checkpoint_dir", built / "checkpoint", "--output_dir", tmp_path / "engine")
    assert "max_position_embeddings is 128" in failure(*arguments, "--max_seq_len", 129)
    assert "raise max_seq_len" in failure(*arguments, "--max_input_len", 65, "--max_seq_len", 64)
    assert list(tmp_path.iterdir()) == []


def test_wrong_directories(built: Path, tmp_path: Path) -> None:
    assert "is a checkpoint" in failure(*generate(built / "checkpoint"))
    assert "does not exist" in failure(*generate(tmp_path / "absent"))
    assert "network.onnx" in failure("build", "--checkpoint_dir", built / "model", "--output_dir", tmp_path / "e")
    failure("inspect", tmp_path)
    failure("convert", "--model_dir", tmp_path, "--output_dir", tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_engine(engine: Path) -> None:
    file = engine / "rank0.engine"
    content = file.read_bytes()
    for length in (0, 7, 100, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:length])
        assert str(file) in failure(*generate(engine))


def test_a_flipped_bit(engine: Path) -> None:
    file = engine / "rank0.engine"
    content = bytearray(file.read_bytes())
    for position in (3, 50, len(content) // 3, len(content) - 100):
        content[position] ^= 4
        file.write_bytes(content)
        failure(*generate(engine))
        content[position] ^= 4


def test_a_newer_format(engine: Path) -> None:
    file = engine / "rank0.engine"
    file.write_bytes(file.read_bytes().replace(b'"format_version":"1"', b'"format_version":"2"'))
    assert "version" in failure(*generate(engine))


def test_another_tokenizer(engine: Path) -> None:
    (engine / "tokenizer.json").write_text("{}")
    assert "changed or damaged after the build" in failure(*generate(engine))
    (engine / "tokenizer.json").unlink()
    assert "copy the whole directory" in failure(*generate(engine))
    with pytest.raises(EngineError, match="cannot be read"):
        ModelRunner.from_dir(engine)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_stream_quietly(built: Path) -> None:
    command = [sys.executable, "-m", "trtllm_lite", "generate", "--engine_dir", str(built / "engine")]
    process = subprocess.Popen(
        [*command, "--prompt", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.write(b"x" * (1 << 17))  # more than a pipe holds, so that the process must be reading its prompt
    process.stdin.flush()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors.decode()) == (130, "interrupted\n")
