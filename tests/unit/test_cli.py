"""The command line: spelling, help, errors as one message, options of TensorRT-LLM, streaming."""

import os
import re
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tests.unit.builder.checkpoints import save_checkpoint
from tests.unit.runtime.doubles import fake_runner, greedy_continuation
from tests.unit.runtime.texts import byte_level_tokenizer
from trtllm_lite import GuidedDecodingParams
from trtllm_lite.cli import cli, quantize_options
from trtllm_lite.cli.console import print_table
from trtllm_lite.common.files import atomic_directory
from trtllm_lite.common.units import counted
from trtllm_lite.common.vocabulary import DEFAULT_MAX_LORAS
from trtllm_lite.errors import EngineError, LimitError
from trtllm_lite.quantize.schemes import FULL_PRECISION, SCHEMES
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.session.limits import RunnerOptions
from trtllm_lite.serve.http.limits import HttpLimits
from trtllm_lite.workflows.device import DEVICES

BUILDING = ("convert", "quantize", "plan", "build")
COMMANDS = (*BUILDING, "generate", "serve", "inspect", "verify", "sign", "push", "pull", "eval", "bench", "cache")
BENCHMARKS = ("bench latency", "bench throughput", "bench serve-sim", "bench serve")


def run(*arguments, **settings):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], **settings)


@pytest.fixture
def runner(monkeypatch):
    runner = fake_runner(RunnerOptions(max_batch_size=1), tokenizer=byte_level_tokenizer())
    monkeypatch.setattr(ModelRunner, "from_dir", lambda *_, **__: runner)
    return runner


def fail_with(monkeypatch, error):
    def from_dir(*_, **__):
        raise error

    monkeypatch.setattr(ModelRunner, "from_dir", from_dir)
    return run("generate", "--engine_dir", "e", "--prompt", "x")


@pytest.mark.parametrize("command", [*COMMANDS, *BENCHMARKS])
def test_help_explains(command):
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert any(word in result.output for word in ("_dir", "ENGINE", "engines", "URL"))


@pytest.mark.parametrize("command", ["", *COMMANDS, *BENCHMARKS, "cache list", "cache clear"])
def test_help_fits_80_columns(command):
    _, *lines = run(*command.split(), "--help", env={"COLUMNS": "80"}).output.splitlines()
    assert [line for line in lines if len(line) > 80 or line.endswith("...") or "None" in line] == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("port", -1), ("port", 65536), ("max_body_size", 0), ("max_queue_size", -5), ("host_cache_size", -1)),
        *(("drain_timeout", -3), ("drain_timeout", "nan"), ("drain_timeout", "inf")),
        *(("kv_cache_free_gpu_memory_fraction", 0), ("kv_cache_free_gpu_memory_fraction", 1.5)),
        *((name, 0) for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "num_threads")),
        *((name, 0) for name in ("max_tokens_in_paged_kv_cache", "max_lora_rank", "max_loras", "max_cpu_loras")),
    ],
)
def test_numbers_of_servers_are_in_range(option, value):
    result = run("serve", "absent", f"--{option}", value)
    assert result.exit_code == 2
    assert f"Invalid value for '--{option}'" in result.stderr


def test_defaults_of_servers_are_those_of_their_parts():
    shown = re.sub(r"\s+", " ", run("serve", "--help").output)
    assert f"[default: {HttpLimits.max_body_bytes}; x>=1]" in shown
    assert f"Adapters in use at once. [default: {DEFAULT_MAX_LORAS}]" in shown


def test_choices_are_those_of_the_stages() -> None:
    """The command line has its own list of devices and formats, so that its help needs no package that quantizes."""
    assert quantize_options.DEVICES == DEVICES
    assert set(quantize_options.QFORMATS) == {FULL_PRECISION, *SCHEMES}


def test_commands_are_listed_in_the_order_of_the_stages():
    listed = re.findall(r"^  (\w+)  ", run("--help").output.split("Commands:")[1], re.MULTILINE)
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("spelling", ["--max_new_tokens", "--max-new-tokens"])
def test_underscores_and_hyphens_are_the_same(runner, spelling):
    result = run("generate", "--engine-dir", "e", "--prompt", "the", f"{spelling}=4", "--end_id", "-1")
    tokens = greedy_continuation(runner.tokenizer.encode("the"), 4)
    assert result.stdout == runner.tokenizer.decode(tokens) + "\n"


def test_values_keep_their_spelling(runner):
    arguments = ("--prompt", "--a-b", "--max_new_tokens", 2, "--end_id", -1)
    tokens = greedy_continuation(runner.tokenizer.encode("--a-b"), 2)
    assert run("generate", "--engine_dir", "e", *arguments).stdout == runner.tokenizer.decode(tokens) + "\n"


def test_timings_go_to_stderr(runner):
    result = run("generate", "--engine_dir", "e", "--prompt", "-", "--max_new_tokens", 3, "--end_id", -1, input="the")
    prompt = counted(len(runner.tokenizer.encode("the")), "prompt token")
    assert re.search(rf"{prompt}; first token after .* 3 tokens: max_new_tokens", result.stderr)


def test_options_of_generate_reach_the_runner(runner):
    arguments = ("--chat", "--temperature", 0.8, "--top_k", 5, "--top_p", 0.9, "--min_p", 0.01, "--random_seed", 3)
    result = run("generate", "--engine_dir", "e", "--prompt", "hi", "--max_new_tokens", 5, *arguments)
    expected = runner.generate(
        "hi", chat=True, max_new_tokens=5, temperature=0.8, top_k=5, top_p=0.9, min_p=0.01, random_seed=3
    )
    assert result.stdout == expected + "\n"


def test_the_form_of_an_answer_reaches_the_runner(runner, tmp_path, monkeypatch):
    schema, other = tmp_path / "schema.json", tmp_path / "other.json"
    schema.write_text('{"type": "null"}')
    other.write_bytes(b"\xff")
    given = []
    monkeypatch.setattr(type(runner), "generate", lambda *_, guided_decoding, **__: given.append(guided_decoding) or [])
    for arguments in (("--guided_json", schema), ("--guided_choice", "a", "--guided_choice", "b"), ()):
        run("generate", "--engine_dir", "e", "--prompt", "hi", *arguments)
    assert given == [GuidedDecodingParams(json='{"type": "null"}'), GuidedDecodingParams(choice=["a", "b"]), None]
    refused = run("generate", "--engine_dir", "e", "--prompt", "hi", "--guided_json", other)
    assert "expected UTF-8" in refused.stderr
    twice = run("generate", "--engine_dir", "e", "--prompt", "hi", "--guided_json", schema, "--guided_regex", "a")
    assert "has json and regex: expected exactly one" in twice.stderr


def test_penalties_and_bad_words_reach_the_runner(runner):
    arguments = (
        "--repetition_penalty",
        1.8,
        "--presence-penalty",
        0.5,
        "--frequency_penalty",
        0.4,
        "--bad_words",
        "你好",
    )
    result = run("generate", "--engine_dir", "e", "--prompt", "hi", "--max_new_tokens", 9, *arguments)
    expected = runner.generate(
        "hi",
        max_new_tokens=9,
        repetition_penalty=1.8,
        presence_penalty=0.5,
        frequency_penalty=0.4,
        bad_words_list=["你好"],
    )
    assert result.stdout == expected + "\n"
    assert expected != runner.generate("hi", max_new_tokens=9)


@pytest.mark.parametrize("error", [EngineError("it is broken: build it again"), LimitError("too long: shorten it")])
def test_errors_are_one_message(monkeypatch, error):
    result = fail_with(monkeypatch, error)
    assert result.exit_code == 1
    assert result.stderr == f"Error: {error}\n"


def test_unexpected_errors_too(monkeypatch):
    result = fail_with(monkeypatch, ZeroDivisionError("division by zero"))
    assert result.exit_code == 1
    assert result.stderr == "Error: ZeroDivisionError: division by zero (unexpected; --debug shows where)\n"


def test_debug_shows_the_traceback():
    result = run("generate", "--engine_dir", "absent", "--prompt", "x", "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: engine directory absent does not exist")


def test_ctrl_c_is_quiet(monkeypatch):
    result = fail_with(monkeypatch, KeyboardInterrupt())
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


def test_an_interrupt_says_what_its_notes_know(monkeypatch):
    interrupt = KeyboardInterrupt()
    interrupt.add_note("go on with \x1b[2J")
    assert fail_with(monkeypatch, interrupt).stderr == "interrupted: go on with \\x1b[2J\n"


def test_sigterm_leaves_nothing_behind(monkeypatch, tmp_path):
    def convert(_, output_dir, **__):
        with atomic_directory(output_dir, "config.json"):
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("SIGTERM must end the command")

    monkeypatch.setattr("trtllm_lite.convert.convert_checkpoint", convert)
    before = signal.getsignal(signal.SIGTERM)
    result = run("convert", "--model_dir", "m", "--output_dir", tmp_path / "out")
    assert (result.exit_code, result.stderr) == (143, "terminated\n")
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_terminal_escapes_in_a_message_are_escaped(monkeypatch):
    result = fail_with(monkeypatch, EngineError("no tensor \x1b[2J\x9b1m\u202ename:\n\tbuild é again"))
    assert result.stderr == "Error: no tensor \\x1b[2J\\x9b1m\\u202ename:\n\tbuild é again\n"


@pytest.mark.parametrize("command", ["", *COMMANDS, "bench", *BENCHMARKS])
def test_h_is_help(command):
    assert run(*command.split(), "-h").output == run(*command.split(), "--help").output


def test_the_package_runs_as_a_module():
    result = subprocess.run([sys.executable, "-m", "trtllm_lite", "--version"], capture_output=True, text=True)
    assert result.stdout.startswith("trtllm-lite, version")


@pytest.mark.parametrize(
    ("command", "option", "remedy"),
    [
        ("convert", ("--tp_size", "2"), "a checkpoint is the same for any number of GPUs"),
        ("convert", ("--use-weight-only",), "use `trtllm-lite build --qformat int8_wo`"),
        ("convert", ("--trust_remote_code",), "never run"),
        ("build", ("--cp-size=2",), "by --tp_size, --moe_ep_size and --pp_size"),
        ("convert", ("--moe_ep_size", "2"), "a checkpoint is the same for any number of GPUs"),
        ("build", ("--max_output_len", "256"), "--max_seq_len"),
        ("build", ("--qformat", "int3"), "'int3' is not one of 'full_prec', 'int8_wo', 'fp8_wo'"),
        ("build", ("--use_weight_only",), "use `trtllm-lite build --qformat int8_wo`"),
        ("build", ("--use_fp8",), "use --qformat fp8 of"),
        ("build", ("--fp8_kv_cache",), "use --kv_cache_dtype fp8 of"),
        ("convert", ("--calib_size", "4"), "use it with `trtllm-lite quantize`"),
        ("build", ("--weight_streaming", "--output_dir", "e"), "--weight_streaming: weights are stored"),
        ("build", ("--dry_run",), "trtllm-lite plan"),
        ("build", ("--kv_cache_type", "continuous"), "always paged"),
        ("plan", ("--monitor-memory",), "trtllm-lite plan"),
        ("generate", ("--max_output_len", "5"), "--max_new_tokens"),
        ("generate", ("--input_text", "x"), "--prompt"),
    ],
)
def test_options_of_tensorrt_llm_say_what_replaces_them(command, option, remedy):
    result = run(command, *option)
    assert result.exit_code == 2
    assert remedy in result.stderr


def test_neutral_values_are_accepted(runner):
    result = run(
        *("generate", "--engine_dir", "e", "--prompt", "x", "--num_beams", 1, "--repetition-penalty", "1.0"),
        *("--max_new_tokens", 1),
    )
    assert result.exit_code == 0
    assert runner.session.pump.loop.num_submitted


@pytest.mark.parametrize(
    "option",
    [
        *("--workers=8", "--gemm_plugin=disable", "--opt-num-tokens=64", "--log_level=verbose"),
        *("--multiple_profiles=enable", "--context_fmha=disable", "--builder_opt=3", "--gather_generation_logits"),
    ],
)
def test_harmless_options_of_tensorrt_llm_give_a_note(option):
    result = run("build", "--checkpoint_dir", "absent", "--output_dir", "e", option)
    first, *others = result.stderr.splitlines()
    given = option.replace("-", "_").replace("__", "--", 1).replace("=", " ")
    assert first.startswith(f"Note: {given} changes nothing: ")
    assert [line.split(":")[0] for line in others] == ["Error"]  # there is no such checkpoint


@pytest.mark.parametrize("option", ["--use_fused_mlp", "--strongly_typed", "--gemm_plugin=auto", "--tp_size=1"])
def test_what_asks_for_nothing_is_accepted_silently(option):
    result = run("build", "--checkpoint_dir", "absent", option, "--output_dir", "e")
    assert result.stderr.startswith("Error: ")
    assert "absent" in result.stderr


@pytest.mark.parametrize("arguments", [("--tp_sizes", "2"), ("--pp_sise", "2"), ("--workerz", "8"), ("--dry_runs",)])
@pytest.mark.parametrize("command", ["convert", "build", "plan"])
def test_hidden_options_are_never_suggested(command, arguments):
    result = run(command, *arguments)
    assert result.exit_code == 2
    listed = run(command, "--help").output
    assert all(name in listed for name in re.findall(r"--\w+", result.stderr.split("Error:")[1])[1:])


def test_the_title_of_a_table_may_be_longer_than_the_table(capsys):
    title = "a title that is longer than its table"
    print_table(title, ["", ""], [["a", "b"]])
    assert capsys.readouterr().out.splitlines()[0].rstrip() == title


def test_a_dry_run_is_plan_with_the_same_flags(tmp_path):
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "qwen3")
    flags = [
        *("--checkpoint_dir", checkpoint, "--output_dir", tmp_path / "e", "--max_batch_size", 2, "--max_input_len", 16),
        *("--max_seq_len", 48, "--gemm_plugin", "auto", "--workers", 8, "--strip_plan", "--fast_build", "--dry_run"),
    ]
    assert "use `trtllm-lite plan` with the same flags" in run("build", *flags).stderr
    result = run("plan", *flags)
    assert result.exit_code == 0, result.stderr
    assert "kv_cache" in result.stdout
    assert not (tmp_path / "e").exists()


def test_auto_is_no_target_among_others(tmp_path):
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "qwen3")
    result = run("plan", "--checkpoint_dir", checkpoint, "--target", "auto", "--target", "sm_90")
    assert result.exit_code == 2
    assert "--target auto is this machine: pass it alone" in result.stderr


def test_a_build_says_for_what_it_is(tmp_path):
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "qwen3")
    result = run("build", "--checkpoint_dir", checkpoint, "--output_dir", tmp_path / "e")
    assert "the target is cpu (no NVIDIA GPU was found)" in result.stderr
    assert "max_input_len 64, max_seq_len 64," in result.stdout  # the model's limits


def test_threads_on_a_gpu_are_errors():
    result = run("plan", "--checkpoint_dir", "absent", "--target", "sm_80,sm_90", "--num_threads", 2)
    assert result.exit_code == 1
    assert "num_threads is given, and the engine runs on a GPU: leave it out" in result.stderr


def test_unknown_options_are_errors():
    result = run("build", "--max_batchsize", 3)
    assert result.exit_code == 2
    assert "--max_batch_size" in result.stderr
