"""Names that several models share by weight."""

import io
import json
from collections import Counter
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace

import pytest

from tests.unit.serve.served import ask
from trtllm_lite.errors import ArgumentError
from trtllm_lite.serve.access_log import AccessLog
from trtllm_lite.serve.model_names import ModelNames
from trtllm_lite.serve.model_weights import check_kinds, shares_of
from trtllm_lite.serve.served_engine import ModelSettings

SHARED = {"model": {"shares": {"chat": 1}}, "others": ({"names": ("second",), "shares": {"chat": 3}},)}


def test_weights_are_those_of_each_model():
    given = ["chat=v1:90,llama:8b:10", "all=v1:1,other:0"]
    assert shares_of(given, ["v1", "llama:8b", "other"]) == {
        "v1": {"chat": 90, "all": 1},
        "llama:8b": {"chat": 10},
        "other": {"all": 0},
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("chat", "expected NAME=MODEL:WEIGHT"),
        ("chat=v1", "expected NAME=MODEL:WEIGHT"),
        ("=v1:1", "expected NAME=MODEL:WEIGHT"),
        ("chat=v1:1,", "expected NAME=MODEL:WEIGHT"),
        ("chat=v1:-1", "expected NAME=MODEL:WEIGHT"),
        ("chat=v1:0.5", "expected NAME=MODEL:WEIGHT"),
        ("chat=v1:1,v1:2", "expected NAME=MODEL:WEIGHT"),
        ("chat=v1:0,v2:0", "give one a weight above 0"),
        ("chat=v3:1", "has 'v3', and the models are 'v1', 'v2'"),
        ("v1=v2:1", "names 'v1', which is a model already"),
    ],
)
def test_weights_that_mean_nothing_are_refused(given, message):
    with pytest.raises(ArgumentError, match=message):
        shares_of([given], ["v1", "v2"])


def test_a_name_is_given_once():
    with pytest.raises(ArgumentError, match="names 'chat', which is a model already"):
        shares_of(["chat=v1:1", "chat=v2:1"], ["v1", "v2"])


def test_an_encoder_and_a_generator_share_no_name():
    settings = ModelSettings(names=("a",), shares={"chat": 1})
    with pytest.raises(ArgumentError, match="an encoder and a generator for 'chat'"):
        check_kinds([(SimpleNamespace(generates=value), settings) for value in (False, True)])


@dataclass(eq=False)
class Model:
    """The parts of a served engine that concern its names."""

    name: str
    settings: ModelSettings


def test_models_get_requests_by_weight():
    weights = {"a": 1, "b": 3, "none": 0}
    models = [Model(name, ModelSettings(names=(name,), shares={"chat": w})) for name, w in weights.items()]
    names = ModelNames(models, Random(0))
    drawn = Counter(names.find("chat")[0].name for _ in range(4000))
    assert drawn.keys() == {"a", "b"}
    # The count of 4000 draws with probability 1/4 has a standard deviation of 27; six of them are allowed.
    assert abs(drawn["a"] - 1000) < 6 * 27


def test_answers_logs_and_metrics_tell_the_version():
    log = io.StringIO()

    async def talk(server):
        named = {"chat": Counter(), "second": Counter(), "": Counter()}
        for name, versions in named.items():
            for _ in range(40):
                response = await server.complete([3], max_tokens=1, model=name)
                versions[response.headers.get("X-Model-Version")] += 1
                assert json.loads(response.body)["model"] == (name or "chat")
        assert named["second"] == {None: 40}
        drawn = named["chat"] + named[""]
        assert drawn.keys() == {"tiny", "second"}  # the chance that one gets all is one in ten billion
        text = (await server.ask("GET", "/metrics")).body.decode()
        for name, count in (("tiny", drawn["tiny"]), ("second", drawn["second"] + 40)):
            line = f'vllm:request_success_total{{engine="0",finished_reason="length",model_name="{name}"}} {count}.0'
            assert line in text
        return drawn

    drawn = ask(talk, **SHARED, access_log=AccessLog(log))
    for name, count in drawn.items():
        assert log.getvalue().count(f"model=chat version={name} ") == count


def test_a_shared_name_is_one_of_the_models():
    async def talk(server):
        listed = json.loads((await server.ask("GET", "/v1/models")).body)["data"]
        assert [entry["id"] for entry in listed] == ["chat", "tiny", "second"]
        error = json.loads((await server.complete([3], model="char")).body)["error"]
        assert "expected 'chat', 'tiny', 'second', or an adapter" in error["message"]

    ask(talk, **SHARED)


def test_an_adapter_is_loaded_by_a_model_of_its_own_name():
    async def talk(server):
        body = {"lora_name": "mine", "lora_path": "mine", "model": "chat"}
        error = json.loads((await server.ask("POST", "/v1/load_lora_adapter", body)).body)["error"]
        assert (error["code"], error["param"]) == ("shared_name", "model")

    ask(talk, **SHARED)
