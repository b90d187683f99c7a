"""A model without a tokenizer takes and gives token ids; text is an error that says what to do."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.e2e.llm import GREEDY, LIMITS, random_prompts
from tests.models import save_tiny_model, save_tokenizer
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.cli import cli
from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime import ModelRunner


def _run(*arguments: object) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ids") / "model"
    save_tiny_model("llama", directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).unlink()
    return directory


@pytest.fixture(scope="module")
def engine(model: Path) -> Path:
    checkpoint, engine = model.parent / "checkpoint", model.parent / "engine"
    converted = _run("convert", "--model_dir", model, "--output_dir", checkpoint)
    assert converted.count("without a tokenizer") == 1
    limits = [part for name, value in LIMITS.items() for part in (f"--{name}", value)]
    assert "next: trtllm-lite bench latency" in _run(
        "build", "--checkpoint_dir", checkpoint, "--output_dir", engine, *limits
    )
    assert "kv_cache" in _run("plan", "--checkpoint_dir", checkpoint, *limits)
    assert sorted(path.name for path in engine.iterdir()) == ["config.json", "rank0.engine"]
    return engine


def test_the_other_commands_know_no_text(engine: Path) -> None:
    assert "LlamaForCausalLM" in _run("inspect", engine)
    bench = ("--batch_size", 1, "--input_len", 8, "--output_len", 4, "--repeats", 1, "--memory_bandwidth", 10)
    _run("bench", "latency", "--engine_dir", engine, *bench)
    result = CliRunner().invoke(cli, ["generate", "--engine_dir", str(engine), "--prompt", "the"])
    assert result.exit_code == 1
    assert "this engine has no tokenizer: pass lists of token ids" in result.stderr


def test_ids_come_back_as_with_a_tokenizer(model: Path, engine: Path, llm: LLM) -> None:
    prompts = random_prompts(seed=5, count=3)
    expected = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
    with LLM(model, **LIMITS) as ours:
        assert ours.tokenizer is None
        outputs = [output.outputs[0] for output in ours.generate(prompts, GREEDY)]
    assert [output.token_ids for output in outputs] == expected
    assert {output.text for output in outputs} == {""}
    runner = ModelRunner.from_dir(engine)
    rows = runner.generate(prompts, max_new_tokens=12, end_id=-1, temperature=0)
    tokens = [list(row[0][len(prompt) : len(prompt) + 12]) for row, prompt in zip(rows, prompts, strict=True)]
    assert tokens == [list(ids) for ids in expected]


def test_text_is_an_error_everywhere(engine: Path, tmp_path: Path) -> None:
    with LLM(engine) as llm:
        for prompts, options, message in (
            ("the fox", {}, "no tokenizer: pass lists of token ids"),
            (["the fox"], {"stop": "."}, "no tokenizer: pass lists of token ids"),
            ([[5, 6]], {"stop": "."}, "no tokenizer: give stop words as token ids"),
            ([[5, 6]], {"bad": "fox"}, "no tokenizer: give bad words as token ids"),
        ):
            with pytest.raises(ArgumentError, match=message):
                llm.generate(prompts, SamplingParams(**options))
        with pytest.raises(ArgumentError, match="no tokenizer"):
            llm.generate("hi", chat=True)
        assert llm.generate([[5, 6]], SamplingParams(stop=[[7]], bad=[[9]], max_tokens=2))[0].outputs[0].token_ids
    save_tokenizer(tmp_path)
    with LLM(engine, tokenizer=tmp_path) as llm:
        assert isinstance(llm.generate("the fox", GREEDY).outputs[0].text, str)
