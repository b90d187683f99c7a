"""A repository holds what Triton reads: each config.pbtxt is a ModelConfig, and the models fit together."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.unit.builder.checkpoints import LIMITS, config_of, save_checkpoint
from tests.unit.builder.networks import VARIANTS
from tests.unit.triton.stand_in import read_config
from trtllm_lite import LLM
from trtllm_lite.cli import cli
from trtllm_lite.engine.manifest import Target
from trtllm_lite.errors import ArgumentError, EngineError, OutputError
from trtllm_lite.triton import configs
from trtllm_lite.triton.repository import write_repository
from trtllm_lite.triton.text_proto import text_of

MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble")


@pytest.fixture(scope="module")
def parsed(repository: Path) -> dict[str, Any]:
    """The configuration of each model."""
    return {name: read_config(repository / name) for name in MODELS}


def test_every_directory_holds_the_model_of_its_name(repository: Path, parsed: dict[str, Any]) -> None:
    assert sorted(path.name for path in repository.iterdir()) == sorted(MODELS)
    for name, config in parsed.items():
        assert config.name == name
        assert (repository / name / "1").is_dir()
        assert (config.backend, config.platform) == (("", "ensemble") if name == "ensemble" else ("python", ""))
        assert (repository / name / "1" / "model.py").is_file() == (config.backend == "python")


def test_model_files_import_our_models(repository: Path) -> None:
    for name in MODELS[:3]:
        scope: dict[str, Any] = {}
        exec((repository / name / "1" / "model.py").read_text(), scope)
        assert scope["TritonPythonModel"].__module__ == f"trtllm_lite.triton.{name}"


def test_only_the_engine_sends_several_responses(parsed: dict[str, Any]) -> None:
    assert {name: config.model_transaction_policy.decoupled for name, config in parsed.items()} == {
        **dict.fromkeys(MODELS, False),
        "tensorrt_llm": True,
    }


def test_the_steps_of_the_ensemble_fit_together(parsed: dict[str, Any]) -> None:
    """Types agree, nothing is missing, and a step's inputs come from the same responses, as Triton demands."""
    ensemble = parsed["ensemble"]
    known = {entry.name: (entry.data_type, list(entry.dims), "request") for entry in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        config = parsed[step.model_name]
        inputs = {entry.name: entry for entry in config.input}
        assert set(step.input_map) <= set(inputs)
        assert {entry.name for entry in config.input if not entry.optional} <= set(step.input_map)
        for name, source in step.input_map.items():
            assert known[source][:2] == (inputs[name].data_type, list(inputs[name].dims))
        (origin,) = {known[source][2] for source in step.input_map.values()}
        outputs = {entry.name: entry for entry in config.output}
        origin = "engine" if config.model_transaction_policy.decoupled else origin
        for name, target in step.output_map.items():
            known[target] = (outputs[name].data_type, list(outputs[name].dims), origin)
    for entry in ensemble.output:
        assert known[entry.name] == (entry.data_type, list(entry.dims), "engine")


def test_the_ensemble_has_the_names_of_the_tensorrt_llm_backend(parsed: dict[str, Any]) -> None:
    inputs = {entry.name for entry in parsed["ensemble"].input}
    assert inputs >= {
        *("text_input", "max_tokens", "bad_words", "stop_words", "end_id", "pad_id", "top_k", "top_p", "temperature"),
        *("length_penalty", "repetition_penalty", "min_tokens", "presence_penalty", "frequency_penalty"),
        *("random_seed", "return_log_probs", "beam_width", "stream"),
    }
    assert [entry.name for entry in parsed["ensemble"].input if not entry.optional] == ["text_input"]
    outputs = {entry.name for entry in parsed["ensemble"].output}
    assert outputs >= {"text_output", "cum_log_probs", "output_log_probs", "context_logits", "generation_logits"}
    assert {entry.name for entry in parsed["tensorrt_llm"].output} >= {"output_ids", "sequence_length", "cum_log_probs"}


@pytest.mark.parametrize(("kind", "group", "gpus"), [("cpu", "KIND_CPU", []), ("cuda", "KIND_GPU", [0])])
def test_the_engine_runs_on_what_it_was_built_for(kind: str, group: str, gpus: list[int]) -> None:
    text = text_of(configs.tensorrt_llm("engine", Target(kind)))
    (found,) = text_format.Parse(text, model_config_pb2.ModelConfig()).instance_group
    assert (found.count, model_config_pb2.ModelInstanceGroup.Kind.Name(found.kind)) == (1, group)
    assert list(found.gpus) == gpus


def test_any_path_can_be_written() -> None:
    path = '/eng"ine\\\n\x07 é'
    text = text_of(configs.tensorrt_llm(path, Target("cpu")))
    assert text_format.Parse(text, model_config_pb2.ModelConfig()).parameters["engine_dir"].string_value == path


def test_the_engine_is_copied_into_the_repository(llm: LLM, repository: Path) -> None:
    copied = repository / "tensorrt_llm" / "1" / "engine"
    assert (copied / "rank0.engine").read_bytes() == (llm.engine_dir / "rank0.engine").read_bytes()
    assert (repository / "preprocessing" / "1" / "tokenizer" / "tokenizer.json").is_file()


def test_an_engine_that_stays_where_it_is(llm: LLM, tmp_path: Path) -> None:
    arguments = ["triton-repo", str(llm.engine_dir), str(tmp_path / "out"), "--engine_dir", "/engines/1"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert "preprocessing, tensorrt_llm, postprocessing, ensemble" in result.output
    config = read_config(tmp_path / "out" / "tensorrt_llm")
    assert config.parameters["engine_dir"].string_value == "/engines/1"
    assert not list(tmp_path.rglob("rank0.engine"))


def test_a_relative_path_on_the_server_is_refused(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"engine_dir is 'engine': expected an absolute path"):
        write_repository(llm.engine_dir, tmp_path / "out", "engine")
    assert list(tmp_path.iterdir()) == []


def test_an_engine_without_a_tokenizer_is_one_model(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint")
    (checkpoint / "config.json").write_text(replace(config_of(VARIANTS["llama"]), tokenizer=False).to_json())
    limits = [f"--{name}={value}" for name, value in LIMITS.items()]
    arguments = ["--checkpoint_dir", str(checkpoint), "--output_dir", str(tmp_path / "engine"), *limits]
    assert CliRunner().invoke(cli, ["build", *arguments]).exit_code == 0
    result = CliRunner().invoke(cli, ["triton-repo", str(tmp_path / "engine"), str(tmp_path / "out")])
    assert "the model takes and gives token ids" in result.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tensorrt_llm"]


def test_a_directory_that_holds_files_stays_as_it_is(llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="absent or empty, but it holds files"):
        write_repository(llm.engine_dir, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_directory_is_taken(llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert write_repository(llm.engine_dir, tmp_path / "out") == list(MODELS)


@pytest.mark.parametrize("name", ["rank0.engine", "tokenizer.json"])
def test_nothing_is_written_of_half_an_engine(name: str, llm: LLM, tmp_path: Path) -> None:
    llm.save(tmp_path / "engine")
    (tmp_path / "engine" / name).unlink()
    with pytest.raises(EngineError, match=name):
        write_repository(tmp_path / "engine", tmp_path / "new" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["engine"]
