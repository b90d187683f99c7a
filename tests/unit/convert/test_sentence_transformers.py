"""What the files of sentence-transformers say of an encoder, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.encoders import write_pooling
from trtllm_lite.convert.sentence_transformers import read_pooling
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.pooling import Pooling


def test_without_files_it_is_the_mean(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == Pooling()


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_modes(tmp_path: Path, first: bool, normalize: bool) -> None:
    modes = {"pooling_mode_mean_tokens": not first, "pooling_mode_cls_token": first, "include_prompt": True}
    write_pooling(tmp_path, normalize, **modes)
    assert read_pooling(tmp_path) == Pooling(first, normalize)


@pytest.mark.parametrize(
    ("modes", "asked"),
    [
        ({"pooling_mode_max_tokens": True}, "pooling_mode_mean_tokens, pooling_mode_max_tokens"),
        ({"pooling_mode_mean_tokens": False}, "nothing"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, "pooling_mode_lasttoken"),
        ({"pooling_mode_cls_token": True}, "pooling_mode_cls_token, pooling_mode_mean_tokens"),
    ],
)
def test_other_poolings_are_refused(tmp_path: Path, modes: dict[str, bool], asked: str) -> None:
    write_pooling(tmp_path, **modes)
    with pytest.raises(ConvertError, match=f"asks for '{asked}': expected one of pooling_mode_mean_tokens and"):
        read_pooling(tmp_path)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({}, "to be a list of modules"),
        (["Transformer"], "to be a list of modules"),
        ([{"type": "sentence_transformers.models.CLIPModel"}], "has the modules 'CLIPModel'"),
        ([{"type": "x.Transformer"}, {"type": "x.Pooling"}, {"type": "x.Dense"}], "'Transformer, Pooling, Dense'"),
        ([{"type": "Transformer"}, {"type": "Pooling", "path": "../elsewhere"}], "the name of a folder"),
        ([{"type": "Transformer"}, {"type": "Pooling"}], "has a pooling at None"),
    ],
)
def test_other_modules_are_refused(tmp_path: Path, modules: Any, message: str) -> None:
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConvertError, match=message):
        read_pooling(tmp_path)


def test_damaged_files_are_clear_errors(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(ConvertError, match="to be JSON"):
        read_pooling(tmp_path)
    write_pooling(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ConvertError, match=r"config\.json"):
        read_pooling(tmp_path)
