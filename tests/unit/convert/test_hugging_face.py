"""Model directories: which files are read, and clear errors for files that cannot be."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.models import BOS, CHAT_TEMPLATE, EOS, PAD, save_model, save_tiny_model, tiny_model
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.mapping import open_source
from trtllm_lite.convert.sources.hugging_face import open_directory
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.config import ModelConfig
from trtllm_lite.runtime.text.chat import ChatTemplate


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_tiny_model("qwen2", tmp_path / "model")
    return tmp_path / "model"


def test_the_checkpoint_is_complete(model: Path, tmp_path: Path) -> None:
    generation = {"do_sample": True, "temperature": 0.7, "top_k": 20, "eos_token_id": [5, 1], "max_length": 99}
    (model / "generation_config.json").write_text(json.dumps(generation))
    calls: list[tuple[str, int, int]] = []
    checkpoint = tmp_path / "checkpoint"
    config = convert_checkpoint(str(model), checkpoint, progress=lambda *call: calls.append(call)).config
    assert sorted(path.name for path in checkpoint.iterdir()) == [
        *("config.json", "network.onnx", "tokenizer.json", "tokenizer_config.json", "weights.safetensors")
    ]
    assert ModelConfig.from_dir(checkpoint) == config
    assert (config.architecture, config.eos_token_ids, config.bos_token_id, config.pad_token_id) == (
        *("Qwen2ForCausalLM", [5, 1]),
        *(0, 2),
    )
    assert config.generation == {"do_sample": True, "temperature": 0.7, "top_k": 20}
    assert (checkpoint / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    done, total = [call[1] for call in calls], {call[2] for call in calls}
    assert done == sorted(done)
    assert {done[-1]} == total


def test_sampling_defaults_may_be_greedy_and_neutral(model: Path, tmp_path: Path) -> None:
    generation = {"do_sample": True, "temperature": 1e-6, "top_k": -1.0}
    (model / "generation_config.json").write_text(json.dumps(generation))
    assert convert_checkpoint(str(model), tmp_path / "checkpoint").config.generation == generation


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": "hot"}, "temperature: expected a number that the sampler can hold, found 'hot'"),
        ({"top_k": 1.5, "top_p": 2}, "top_k: expected .* found 1.5; top_p must be from 0 to 1, not 2"),
        ({"top_k": 2**40}, "top_k: expected a number that the sampler can hold, found 1099511627776"),
        ({"top_k": True}, "top_k: expected a number that the sampler can hold, found True"),
        ({"do_sample": 1}, "do_sample: expected true or false, found 1"),
        ({"temperature": 101}, "temperature must be from 0.01 to 100, not 101"),
        ({"repetition_penalty": 0}, "repetition_penalty must be from 0.01 to 100, not 0"),
        ({"eos_token_id": list(range(300))}, "end_ids may have at most 256 entries, not 300"),
    ],
)
def test_wrong_sampling_defaults_are_an_error(model: Path, tmp_path: Path, wrong: dict, message: str) -> None:
    (model / "generation_config.json").write_text(json.dumps(wrong))
    with pytest.raises(ConvertError, match=message):
        convert_checkpoint(str(model), tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


def test_sampling_defaults_can_be_left_out(model: Path, tmp_path: Path) -> None:
    (model / "generation_config.json").write_text(json.dumps({"temperature": 101, "top_k": 5}))
    config = convert_checkpoint(str(model), tmp_path / "checkpoint", ignore_config_keys=["temperature"]).config
    assert (config.generation, config.ignored_config_keys) == ({"top_k": 5}, ["temperature"])


def test_ignored_config_keys_are_recorded(model: Path, tmp_path: Path) -> None:
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**settings, "is_acme": True, "flavour": "x"}))
    with pytest.raises(ConvertError, match=r"(?s)flavour: .*pass --ignore_config_keys flavour \(.*\)\n.*is_acme: True"):
        convert_checkpoint(str(model), tmp_path / "checkpoint")
    with pytest.raises(ConvertError, match="which has no falvour: check the spelling"):
        convert_checkpoint(str(model), tmp_path / "checkpoint", ignore_config_keys=["falvour", "is_acme"])
    convert_checkpoint(str(model), tmp_path / "checkpoint", ignore_config_keys=["is_acme", "flavour"])
    assert ModelConfig.from_dir(tmp_path / "checkpoint").ignored_config_keys == ["flavour", "is_acme"]


def test_a_nested_config_key_can_be_ignored(model: Path, tmp_path: Path) -> None:
    settings = json.loads((model / "config.json").read_text())
    stretched = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "flavour": 0.88}
    settings = {key: value for key, value in settings.items() if key != "rope_parameters"}
    (model / "config.json").write_text(json.dumps({**settings, "rope_scaling": stretched}))
    key = "rope_scaling.flavour"
    with pytest.raises(ConvertError, match=rf"{key}: 0.88 is not mapped .* pass --ignore_config_keys {key} "):
        convert_checkpoint(str(model), tmp_path / "checkpoint")
    for absent in ("rope_scaling.factors", "rope_theta.flavour", "flavour"):
        with pytest.raises(ConvertError, match=f"which has no {absent}: .*OBJECT.KEY"):
            convert_checkpoint(str(model), tmp_path / "checkpoint", ignore_config_keys=[absent])
    assert convert_checkpoint(
        str(model), tmp_path / "checkpoint", ignore_config_keys=[key]
    ).config.ignored_config_keys == [key]


def test_a_model_without_a_tokenizer(model: Path, tmp_path: Path) -> None:
    convert_checkpoint(str(model), tmp_path / "checkpoint")
    assert ModelConfig.from_dir(tmp_path / "checkpoint").tokenizer
    (model / "tokenizer.json").unlink()
    assert not convert_checkpoint(str(model), tmp_path / "checkpoint").config.tokenizer
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == [
        *("config.json", "network.onnx", "weights.safetensors")
    ]


def test_a_list_of_words_is_named(model: Path) -> None:
    """A model with only an unsupported tokenizer file must not be reported as one without a tokenizer."""
    (model / "vocab.txt").write_text("{}")
    assert open_directory(model).tokenizer is not None
    (model / "tokenizer.json").unlink()
    with pytest.raises(ConvertError, match=r"in vocab.txt alone, expected tokenizer.json .*save_pretrained"):
        open_directory(model)


def test_a_checkpoint_is_no_model(model: Path, tmp_path: Path) -> None:
    convert_checkpoint(str(model), tmp_path / "checkpoint")
    with pytest.raises(ConvertError, match="is a checkpoint already: pass it to `trtllm-lite build --checkpoint_dir"):
        convert_checkpoint(str(tmp_path / "checkpoint"), tmp_path / "again")


def test_identical_inputs_give_identical_bytes(model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        convert_checkpoint(str(model), tmp_path / name)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_an_earlier_checkpoint_is_replaced_and_a_model_is_not(model: Path, tmp_path: Path) -> None:
    convert_checkpoint(str(model), tmp_path / "checkpoint")
    assert convert_checkpoint(str(model), tmp_path / "checkpoint", "bfloat16").config.dtype == "bfloat16"
    before = sorted(os.listdir(model))
    with pytest.raises(Exception, match="other files"):
        convert_checkpoint(str(model), model)
    assert sorted(os.listdir(model)) == before


def test_chat_template_and_tokens_from_every_place(model: Path) -> None:
    expected = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "chat_template": CHAT_TEMPLATE}
    assert open_directory(model).tokenizer_config == expected
    settings = {"bos_token": {"content": BOS}, "chat_template": [{"name": "default", "template": CHAT_TEMPLATE}]}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (model / "special_tokens_map.json").write_text(json.dumps({"eos_token": EOS, "pad_token": {"content": PAD}}))
    assert open_directory(model).tokenizer_config == expected
    (model / "chat_template.jinja").write_text("other")
    assert open_directory(model).tokenizer_config["chat_template"] == "other"
    for name in ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        (model / name).unlink()
    assert open_directory(model).tokenizer_config == {}


@pytest.mark.parametrize("save_jinja_files", [True, False])
def test_named_chat_templates_are_kept(model: Path, save_jinja_files: bool) -> None:
    theirs = AutoTokenizer.from_pretrained(model)
    theirs.chat_template = {"default": "a", "tool_use": "b", "rag": "c"}
    theirs.save_pretrained(model, save_jinja_files=save_jinja_files)
    assert AutoTokenizer.from_pretrained(model).chat_template == theirs.chat_template
    found = open_directory(model).tokenizer_config["chat_template"]
    assert {entry["name"]: entry["template"] for entry in found} == theirs.chat_template
    template = ChatTemplate.from_settings(open_directory(model).tokenizer_config)
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}], template="rag") == "c"


@pytest.mark.parametrize("template", [7, ["x"], [{"name": [], "template": "x"}], [{"name": "default"}]])
def test_a_malformed_chat_template_is_an_error(model: Path, template: Any) -> None:
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(ConvertError, match=r"chat_template in tokenizer_config\.json"):
        open_directory(model)


def test_pickles_are_refused(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(ConvertError, match=r"only pickles \(pytorch_model.bin\), which can run code"):
        open_directory(model)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("config.json", r"expected .*config\.json in a Hugging Face model directory, found none"),
        ("model.safetensors", "expected safetensors weights in .*, found none"),
    ],
)
def test_missing_files_are_named(model: Path, file: str, message: str) -> None:
    (model / file).unlink()
    with pytest.raises(ConvertError, match=message):
        open_directory(model)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xef\xbb\xbf{}x", b'{"a": "\xff"}', b"[" * 100_000])
def test_a_damaged_config_is_an_error(model: Path, content: bytes) -> None:
    (model / "config.json").write_bytes(content)
    with pytest.raises(ConvertError, match=r"config\.json"):
        open_directory(model)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"model": {"type": "Unknown"}}'])
def test_a_damaged_tokenizer_is_an_error(model: Path, content: bytes) -> None:
    (model / "tokenizer.json").write_bytes(content)
    with pytest.raises(ConvertError, match=r"tokenizer\.json is not a tokenizer"):
        open_directory(model)


def test_an_unreadable_source_is_an_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "model.safetensors")

    monkeypatch.setattr("trtllm_lite.convert.sources.hugging_face.SafetensorsFile", denied)
    with pytest.raises(ConvertError, match=r"cannot read model\.safetensors: Permission denied"):
        open_source(str(model))


def test_the_only_weights_file_may_have_any_name_but_two_are_ambiguous(model: Path) -> None:
    (model / "model.safetensors").rename(model / "weights.safetensors")
    assert open_directory(model).tensors
    (model / "adapter.safetensors").write_bytes((model / "weights.safetensors").read_bytes())
    with pytest.raises(ConvertError, match=r"found adapter\.safetensors, weights\.safetensors"):
        open_directory(model)


def test_shards_convert_like_one_file(tmp_path: Path) -> None:
    save_model(tiny_model("llama"), tmp_path / "sharded", max_shard_size="60KB")
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 2
    save_model(tiny_model("llama"), tmp_path / "whole")
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    config["torch_dtype"] = config.pop("dtype")  # the key's old name
    (tmp_path / "whole" / "config.json").write_text(json.dumps(config))
    for name in ("sharded", "whole"):
        convert_checkpoint(str(tmp_path / name), tmp_path / f"{name}-checkpoint")
    for path in (tmp_path / "whole-checkpoint").iterdir():
        assert path.read_bytes() == (tmp_path / "sharded-checkpoint" / path.name).read_bytes(), path.name


def test_shards_must_be_complete_and_inside_the_directory(tmp_path: Path) -> None:
    save_model(tiny_model("llama"), tmp_path, max_shard_size="60KB")
    index = tmp_path / "model.safetensors.index.json"
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    shards[1].rename(tmp_path / "moved")
    with pytest.raises(ConvertError, match=f"missing: {shards[1].name}"):
        open_directory(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../outside.safetensors"}}))
    with pytest.raises(ConvertError, match=r"outside\.safetensors"):
        open_directory(tmp_path)
    shards[1].write_bytes(shards[0].read_bytes())
    index.write_text(json.dumps({"weight_map": {"a": shards[0].name, "b": shards[1].name}}))
    with pytest.raises(ConvertError, match="expected every tensor in one file"):
        open_directory(tmp_path)
    index.write_text("{}")
    with pytest.raises(ConvertError, match="weight_map"):
        open_directory(tmp_path)


def test_a_hub_id_without_network_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    def offline(*_: object, **__: object) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("Cannot reach the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ConvertError, match=r"'acme/model-1b' is neither a local directory .*Cannot reach the hub"):
        convert_checkpoint("acme/model-1b", tmp_path / "checkpoint")
    assert os.listdir(tmp_path) == []


def test_a_hub_id_downloads_no_code_and_no_pickles(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    asked = {}
    files = ["config.json", "model.safetensors", "original/model.safetensors", "consolidated.safetensors", "code.py"]

    def download(hub_id: str, revision: str | None, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked[hub_id, revision] = allow_patterns
        found = filter_repo_objects(files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
        assert list(found) == files[:2]  # each weight is read once
        return str(model)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    for revision in (None, "v1.0"):
        assert open_source("acme/model-1b", revision).config["architectures"] == ["Qwen2ForCausalLM"]
        assert not any(pattern.endswith(("*", ".py", ".bin", ".pt")) for pattern in asked["acme/model-1b", revision])
    with pytest.raises(ConvertError, match=r"revision 'v1\.0' is given, and .* is here and not on the hub"):
        open_source(str(model), "v1.0")


def test_models_of_gguf_files_alone_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(ConvertError, match=r"no config\.json on the hub: .*`hf download acme/model-GGUF FILE`"):
        open_source("acme/model-GGUF")
    for name in ("m-Q8_0.gguf", "m-Q4_K.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ConvertError, match=r"holds 2 GGUF files: pass one of them as --model_dir, .*/m-Q4_K\.gguf"):
        open_source(str(tmp_path))


def test_other_paths_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="does not exist"):
        open_source(str(tmp_path / "nowhere"))
    (tmp_path / "model.txt").write_text("hello")
    with pytest.raises(ConvertError, match=r"expected .* to be a directory or a GGUF file"):
        open_source(str(tmp_path / "model.txt"))
