"""The application of Ray Serve takes the options of the server, and refuses what several replicas cannot do."""

from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.serve.engines import make_tiny_engine
from tests.unit.serve.served import Asker, ask
from trtllm_lite.cli.ray_serve import app, parsed
from trtllm_lite.engine.manifest import RankMapping
from trtllm_lite.errors import TrtllmLiteError
from trtllm_lite.serve.api_error import ApiError

ray_serve = pytest.importorskip("trtllm_lite.serve.ray", reason="needs the serve-ray extra")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine for CPUs."""
    return make_tiny_engine(tmp_path_factory.mktemp("ray"), max_seq_len=128)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "without a key"),
        ({"engine": None, "allow_no_api_key": True}, "engine is None"),
        ({"engine": "/nowhere", "allow_no_api_key": True}, "/nowhere"),
        ({"allow_no_api_key": True}, "num_threads is missing"),
        ({"allow_no_api_key": True, "lora_root": "/tmp"}, "lora_root is given"),
        ({"port": 8000}, "No such option '--port'"),
        ({"allow_no_api_key": "perhaps"}, "allow_no_api_key is 'perhaps': expected true or false"),
        ({"max_batch_size": 0}, "max_batch_size"),
    ],
)
def test_arguments_that_cannot_be_served_by_are_refused(engine: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TrtllmLiteError, match=message):
        app({"engine": str(engine), **arguments})


@pytest.mark.parametrize("flag", [True, "true"])
def test_arguments_are_read_from_files_and_from_command_lines(flag: Any) -> None:
    """Files give arguments with types; ``serve run`` passes text only."""
    name, num_replicas, options = parsed(
        {
            **{"engine": "llm=/engine", "num_replicas": "2", "allow_no_api_key": flag, "no_access_log": "false"},
            **{"served_model_name": ["a", "b"], "speculative_config": {"method": "ngram"}},
        }
    )
    assert (name, num_replicas) == ("llm=/engine", 2)
    assert (options["allow_no_api_key"], options["no_access_log"]) == (True, False)
    assert (options["served_model_name"], options["speculative_config"]) == (("a", "b"), {"method": "ngram"})


@pytest.mark.parametrize(
    ("target", "mapping", "options", "expected"),
    [
        ("cpu", {}, {"num_threads": 4}, {"num_cpus": 4}),
        ("cpu", {"pp_size": 2}, {"num_threads": 4, "distributed_executor_backend": "ray"}, {"num_cpus": 1}),
        ("cuda", {}, {}, {"num_cpus": 1, "num_gpus": 1}),
        ("cuda", {"tp_size": 2, "pp_size": 2}, {}, {"num_cpus": 1, "num_gpus": 4}),
        (
            *("cuda", {"tp_size": 2, "pp_size": 2}),
            *({"distributed_executor_backend": "ray"}, {"num_cpus": 1, "num_gpus": 2}),
        ),
    ],
)
def test_a_replica_takes_what_computes_in_its_process(
    target: str, mapping: dict[str, int], options: dict[str, Any], expected: dict[str, int]
) -> None:
    manifest = SimpleNamespace(target=SimpleNamespace(kind=target), mapping=RankMapping(**mapping))
    assert ray_serve.resources(manifest, defaultdict(lambda: None, options)) == expected


def test_a_replica_whose_engine_breaks_is_not_healthy() -> None:
    async def talk(asker: Asker) -> None:
        replica = object.__new__(ray_serve.Replica)
        replica._app, replica._open = asker.app, ExitStack()
        await replica.check_health()
        asker.loop.broken = RuntimeError("no more")
        assert (await asker.complete([1], max_tokens=1)).status == 500
        with pytest.raises(ApiError, match="has failed"):
            await replica.check_health()

    ask(talk)
