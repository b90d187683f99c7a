"""GGUF metadata other than architecture and tokenizer: sampling defaults are used, authorship is ignored."""

from pathlib import Path
from typing import Any

import pytest

from tests.gguf_writer import write_gguf
from tests.models import tiny_model
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.gguf.file import open_gguf
from trtllm_lite.errors import ConvertError

_SAMPLING = "general.sampling"


def _write(path: Path, **metadata: Any) -> Path:
    return write_gguf(tiny_model("llama"), path / "m.gguf", metadata=metadata)


def test_recommended_sampling_becomes_the_defaults(tmp_path: Path) -> None:
    values = {"temp": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.125, "penalty_repeat": 1.25, "penalty_last_n": -1}
    path = _write(tmp_path, **{f"{_SAMPLING}.{key}": value for key, value in values.items() if key != "penalty_last_n"})
    with pytest.raises(
        ConvertError, match=r"penalty_repeat 1\.25 for the last 64 tokens .*, and here it would be for all"
    ):
        open_gguf(path)
    neutral = {f"{_SAMPLING}.penalty_repeat": 1.0, f"{_SAMPLING}.penalty_last_n": 64, f"{_SAMPLING}.mirostat": 0}
    sampled = {f"{_SAMPLING}.{key}": value for key, value in values.items()} | neutral
    config = convert_checkpoint(str(_write(tmp_path, **sampled)), tmp_path / "checkpoint").config
    assert config.generation == {
        **{"do_sample": True, "temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.125},
        "repetition_penalty": 1.0,
    }


@pytest.mark.parametrize(
    ("metadata", "generation"),
    [
        ({}, {}),
        ({f"{_SAMPLING}.temp": 0.0}, {"do_sample": False, "temperature": 0.0}),
        ({f"{_SAMPLING}.top_k": 5}, None),
    ],
)
def test_texts_are_drawn_if_the_file_recommends_it(
    metadata: dict[str, Any], generation: dict[str, Any] | None, tmp_path: Path
) -> None:
    expected = {"do_sample": True, "top_k": 5} if generation is None else generation
    assert open_gguf(_write(tmp_path, **metadata)).generation == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((f"{_SAMPLING}.mirostat", 2), (f"{_SAMPLING}.xtc_probability", 0.5), (f"{_SAMPLING}.sequence", "top_k;temp")),
        *((f"{_SAMPLING}.flavour", 0.5), ("general.flavour", 1), ("tokenizer.ggml.flavour", True)),
        *(("mamba.block_count", 3), ("tokenizer.rwkv.world", "x")),
    ],
)
def test_other_keys_are_errors_and_can_be_ignored(key: str, value: Any, tmp_path: Path) -> None:
    path = _write(tmp_path, **{key: value})
    with pytest.raises(ConvertError, match=rf"{key}: .*pass --ignore_config_keys {key} "):
        convert_checkpoint(str(path), tmp_path / "checkpoint")
    config = convert_checkpoint(str(path), tmp_path / "checkpoint", ignore_config_keys=[key]).config
    assert config.ignored_config_keys == [key]


def test_authorship_changes_nothing(tmp_path: Path) -> None:
    written = {
        **{"general.name": "x", "general.quantized_by": "y", "general.tags": ["a"], "general.file_type": 7},
        **{"general.base_model.0.name": "z", "general.source.url": "u", "quantize.imatrix.chunks_count": 9},
        **{"mradermacher.quantize_version": "2", "tokenizer.ggml.fim_pre_token_id": 3},
    }
    assert open_gguf(_write(tmp_path, **written)).config == open_gguf(_write(tmp_path)).config


@pytest.mark.parametrize("pre", [None, "default"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_a_file_that_does_not_say_how_texts_are_cut_is_an_error(family: str, pre: str | None, tmp_path: Path) -> None:
    path = write_gguf(tiny_model(family), tmp_path / "m.gguf", metadata={"tokenizer.ggml.pre": pre})
    with pytest.raises(
        ConvertError, match=r"tokenizer\.ggml\.pre is default or absent, .*gguf-new-metadata --pre-token"
    ):
        convert_checkpoint(str(path), tmp_path / "checkpoint")
