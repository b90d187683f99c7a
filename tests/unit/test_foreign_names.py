"""Names of other engines: remedies name what there is, and no name of one's own is explained away."""

import re

import pytest
from click.testing import CliRunner

from trtllm_lite.cli import cli
from trtllm_lite.errors import ArgumentError
from trtllm_lite.foreign_names import calls, commands, imports, serving

TABLES = {
    "convert": commands.CONVERT,
    "build": commands.BUILD,
    "plan": commands.PLAN,
    "generate": commands.GENERATE,
    "serve": serving.SERVE,
    "bench serve": serving.BENCH_SERVE,
}


def run(*arguments):
    return CliRunner().invoke(cli, list(arguments))


def options_of(path):
    command = cli
    for name in path.split():
        command = command.commands[name]
    return {"--help"} | {
        option for param in command.params if not getattr(param, "hidden", False) for option in param.opts
    }


@pytest.mark.parametrize("path", TABLES)
def test_remedies_name_options_that_there_are(path):
    for name, entry in TABLES[path].items():
        quoted = re.findall(r"`(?:trtllm-lite )?([a-z]+)", entry.remedy)
        known = options_of(path).union(*(options_of(command) for command in quoted if command in cli.commands))
        assert set(re.findall(r"--\w+", entry.remedy)) <= known, f"{path} --{name}: {entry.remedy}"


@pytest.mark.parametrize("path", TABLES)
def test_no_option_of_the_command_is_foreign(path):
    assert not {f"--{name}" for name in TABLES[path]} & options_of(path)


@pytest.mark.parametrize("table", [*TABLES.values(), commands.COMMANDS, calls.FROM_DIR, calls.GENERATE, calls.LLM])
def test_remedies_are_not_stale(table):
    """What comes "yet" has come since these were written: quantization, mixtures of experts, guessed tokens."""
    topics = re.compile("quant|plugin|medusa|eagle|lookahead|specul|draft|kv_cache")
    assert not [name for name, entry in table.items() if topics.search(name) and "yet" in entry.remedy]


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

    assert not set(imports.CLASSES) & set(trtllm_lite.__all__)
    assert trtllm_lite.SpeculativeConfig(method="ngram").method == "ngram"
    from trtllm_lite import CapacitySchedulerPolicy, EagleDecodingConfig

    with pytest.raises(ArgumentError, match=r'EagleDecodingConfig is no class.*method="eagle3"'):
        EagleDecodingConfig(max_draft_len=3)
    with pytest.raises(ArgumentError, match="MAX_UTILIZATION"):
        print(CapacitySchedulerPolicy.GUARANTEED_NO_EVICT)
    from trtllm_lite.llmapi import CapacitySchedulerPolicy as OfModule
    from trtllm_lite.llmapi import KvCacheConfig

    assert (KvCacheConfig, OfModule.__name__) == (trtllm_lite.KvCacheConfig, "CapacitySchedulerPolicy")
    assert not hasattr(CapacitySchedulerPolicy, "_repr_html_")
    with pytest.raises(ImportError, match="cannot import name 'NoSuchConfig'"):
        from trtllm_lite import NoSuchConfig  # noqa: F401
