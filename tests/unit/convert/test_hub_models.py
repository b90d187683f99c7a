"""The list of the hub's newest models says of each what convert does with its class."""

import tomllib
from pathlib import Path

import pytest

from trtllm_lite.convert.family import all_families
from trtllm_lite.convert.nearest import unsupported
from trtllm_lite.convert.sources.text_model import text_family
from trtllm_lite.errors import ConvertError

LIST = Path(__file__).parents[3] / "configs" / "hub_models.toml"
MODELS = tomllib.loads(LIST.read_text())["model"]
CONVERTING = [model for model in MODELS if "family" in model]
REFUSED = [model for model in MODELS if "family" not in model]


def name_of(model: dict[str, str]) -> str:
    return model["name"]


def test_a_hundred_models_are_listed_once_each() -> None:
    assert len({name_of(model) for model in MODELS}) == len(MODELS) == 100


@pytest.mark.parametrize("model", CONVERTING, ids=name_of)
def test_a_model_that_converts_is_of_a_class_of_its_family(model: dict[str, str]) -> None:
    assert model.keys() == {"name", "architecture", "family", "source"}
    assert model["architecture"] in all_families()[model["family"]].all_architectures


@pytest.mark.parametrize("model", REFUSED, ids=name_of)
def test_a_model_that_does_not_is_refused(model: dict[str, str]) -> None:
    assert model.keys() - {"nearest", "text_model_type"} == {"name", "architecture", "reason", "source"}
    architecture = model["architecture"]
    if "text_model_type" in model:
        config = {"architectures": [architecture], "text_config": {"model_type": model["text_model_type"]}}
        with pytest.raises(ConvertError, match=f"found '?\"?{model['text_model_type']}'?\"?, which is not supported"):
            text_family(config, name_of(model))
    else:
        assert not [name for name, family in all_families().items() if architecture in family.all_architectures]
        assert f"architecture {architecture} is not supported" in str(unsupported([architecture]))


@pytest.mark.parametrize("model", [model for model in REFUSED if "nearest" in model], ids=name_of)
def test_a_refusal_names_the_nearest_family(model: dict[str, str]) -> None:
    (line,) = (line for line in str(unsupported([model["architecture"]])).splitlines() if "nearest by name" in line)
    named = line.partition(": ")[2].split(", ")
    assert set(named) & set(all_families()[model["nearest"]].all_architectures)
