"""Names of other engines: remedies name what exists, and no name of this project is treated as foreign."""

import inspect
import re

import pytest
from click.testing import CliRunner

from trtllm_lite.cli import cli
from trtllm_lite.errors import ArgumentError
from trtllm_lite.foreign_names import classes, commands
from trtllm_lite.foreign_names.table import OPTIONS, TABLE


def run(*arguments):
    return CliRunner().invoke(cli, list(arguments))


def options_of(path):
    command = cli
    for name in path.split():
        command = command.commands[name]
    return {"--help"} | {
        option for param in command.params if not getattr(param, "hidden", False) for option in param.opts
    }


@pytest.mark.parametrize("path", OPTIONS)
def test_remedies_name_options_that_there_are(path):
    for name, entry in OPTIONS[path].items():
        quoted = re.findall(r"`(?:trtllm-lite )?([a-z]+)", entry.remedy)
        known = options_of(path).union(*(options_of(command) for command in quoted if command in cli.commands))
        assert set(re.findall(r"--\w+", entry.remedy)) <= known, f"{path} --{name}: {entry.remedy}"


@pytest.mark.parametrize("path", OPTIONS)
def test_no_option_of_the_command_is_foreign(path):
    assert not {f"--{name}" for name in OPTIONS[path]} & options_of(path)


def accepted():
    """The names of all options and parameters of this project's commands, classes and methods."""
    from trtllm_lite import LLM, KvCacheConfig, SamplingParams
    from trtllm_lite.runtime import ModelRunner

    names = set().union(*({option.removeprefix("--") for option in options_of(path)} for path in OPTIONS))
    for made in (LLM, KvCacheConfig, SamplingParams, ModelRunner.from_dir, ModelRunner.generate):
        names |= inspect.signature(made).parameters.keys()
    return names


@pytest.mark.parametrize("place", TABLE)
def test_nothing_that_is_accepted_is_said_to_be_unsupported(place):
    for name, entry in TABLE[place].items():
        if re.search(r"not supported|\byet\b|not read", entry.remedy):
            assert name.lstrip("-") not in accepted(), f"{place} {name}: {entry.remedy}"
        assert "yet" not in entry.remedy.split(), f"{place} {name}: {entry.remedy}"


@pytest.mark.parametrize("path", OPTIONS)
def test_what_becomes_of_an_option_is_an_option(path):
    becomes = {f"--{entry.becomes}" for entry in OPTIONS[path].values() if entry.becomes}
    assert becomes <= options_of(path)


@pytest.mark.parametrize(
    ("command", "own"),
    [("mmlu", "eval"), ("trtllm-build", "build"), ("run-batch", "serve"), ("chat", "generate"), ("prune", "build")],
)
def test_commands_of_other_engines_have_a_remedy(command, own):
    result = run(command, "--anything")
    assert result.exit_code == 2
    assert f"`trtllm-lite {own}" in result.stderr
    assert own in cli.commands
    assert not commands.COMMANDS.keys() & cli.commands.keys()


def test_names_of_other_engines_take_the_values_of_options(tmp_path):
    (tmp_path / "file.yaml").write_text("max_num_seqs: 0\n")
    for given in (["-np", "0"], ["--max-num-seqs", "0"], ["--config", str(tmp_path / "file.yaml")]):
        result = run("serve", "/absent", *given)
        assert result.exit_code == 2
        assert "Invalid value for '--max_batch_size': 0 is not in the range" in result.stderr
    result = run("serve", "/absent", "-np", "2", "--max_num_seqs", "3")
    assert "-np and --max_num_seqs are names of one option" in result.stderr
    assert run("serve", "/absent", "--no-enable-prefix-caching", "-ngl", "99").exit_code == 1  # there is no model


def test_keys_in_variables_that_are_not_read_are_an_error(monkeypatch):
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    result = run("serve", "/absent")
    assert "Note: the variable VLLM_LOGGING_LEVEL changes nothing" in result.stderr
    assert result.exit_code == 1  # the model does not exist
    monkeypatch.setenv("LLAMA_API_KEY", "a-secret")
    result = run("serve", "/absent")
    assert (result.exit_code, "a-secret" in result.output) == (2, False)
    assert "LLAMA_API_KEY is set, and is not read: put the keys into a file" in result.stderr


def test_an_option_of_one_value_is_given_once():
    result = run("plan", "--max_batch_size", "2", "--checkpoint_dir", "absent", "--max-batch-size", "4")
    assert result.exit_code == 2
    assert "--max_batch_size is given 2 times, and takes one value" in result.stderr
    assert "absent" in run("plan", "--target", "cpu", "--target", "cpu", "--checkpoint_dir", "absent").stderr


@pytest.mark.parametrize(("given", "words"), [((), "no engine is given"), (("a", "--engine_dir", "b"), "two engines")])
def test_generate_takes_one_engine(given, words):
    result = run("generate", *given, "--prompt", "x")
    assert result.exit_code == 2
    assert words in result.stderr


def test_classes_of_other_engines_say_what_to_use_instead():
    import trtllm_lite

    assert not set(classes.CLASSES) & set(trtllm_lite.__all__)
    assert trtllm_lite.SpeculativeConfig(method="ngram").method == "ngram"
    from trtllm_lite import CalibConfig, CapacitySchedulerPolicy, EagleDecodingConfig, MedusaDecodingConfig

    made = EagleDecodingConfig(max_draft_len=3, speculative_model="head", eagle3_one_model=True)
    assert made == trtllm_lite.SpeculativeConfig(method="eagle3", num_speculative_tokens=3, model="head")
    with pytest.raises(ArgumentError, match=r"MedusaDecodingConfig is no class.*eagle3 and mtp instead"):
        MedusaDecodingConfig(max_draft_len=3)
    with pytest.raises(ArgumentError, match=r"EagleDecodingConfig does not take eagle_choices=.*not a tree"):
        EagleDecodingConfig(max_draft_len=3, speculative_model="head", eagle_choices=[[0]])
    policy = CapacitySchedulerPolicy.MAX_UTILIZATION
    assert trtllm_lite.SchedulerConfig(capacity_scheduler_policy=policy).capacity_scheduler_policy == "MAX_UTILIZATION"
    from trtllm_lite.llmapi import CapacitySchedulerPolicy as OfModule
    from trtllm_lite.llmapi import KvCacheConfig

    assert (KvCacheConfig, OfModule) == (trtllm_lite.KvCacheConfig, CapacitySchedulerPolicy)
    assert not hasattr(CalibConfig, "_repr_html_")
    with pytest.raises(ImportError, match="cannot import name 'NoSuchConfig'"):
        from trtllm_lite import NoSuchConfig  # noqa: F401
