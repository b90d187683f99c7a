"""Adapters of a server: given at its start, loaded and unloaded by requests, and refused where they do not fit."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from safetensors.numpy import save_file

from tests.real_models import find_smollm2
from tests.serve.server import serving

HIDDEN, HEADS = 576, 576  # input and output features of SmolLM2-135M's query projections
MODEL = f"smollm2={find_smollm2()}"
LIMITS = ("--dtype", "bfloat16", "--max_batch_size", 2, "--max_seq_len", 256, "--max_lora_rank", 8)
ASKED = {"prompt": "Water boils at", "max_tokens": 8, "temperature": 0}


def write_adapter(directory: Path, rank: int) -> Path:
    """An adapter that changes the first layers' queries a great deal."""
    rng = np.random.default_rng(rank)
    directory.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 64 * rank, "target_modules": ["q_proj"], "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    weights = {}
    for layer in range(4):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = rng.standard_normal((rank, HIDDEN)).astype(np.float32)
        weights[f"{name}.lora_B.weight"] = rng.standard_normal((HEADS, rank)).astype(np.float32)
    save_file(weights, directory / "adapter_model.safetensors")
    return directory


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Directories of adapters: ``good``, ``other``, one of too high a rank, and one whose configuration is broken."""
    root = tmp_path_factory.mktemp("adapters")
    for name, rank in (("good", 8), ("other", 4), ("high", 16)):
        write_adapter(root / name, rank)
    write_adapter(root / "broken", 2)
    (root / "broken" / "adapter_config.json").write_text("{")
    return root


@pytest.fixture(scope="module")
def server(adapters):
    with serving(MODEL, *LIMITS, "--lora_modules", f"good={adapters / 'good'}", "--lora_root", adapters) as running:
        yield running


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)


def load(server, name, path):
    return httpx.post(f"{server.address}/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path})


def test_requests_name_adapters_as_their_model(client):
    plain = client.completions.create(model="smollm2", **ASKED)
    changed = client.completions.create(model="good", **ASKED)
    assert changed.model == "good"
    assert changed.choices[0].text != plain.choices[0].text
    assert client.completions.create(model="smollm2", **ASKED).choices[0].text == plain.choices[0].text
    assert {model.id for model in client.models.list()} == {"smollm2", "good"}


def test_requests_load_and_unload_adapters(server, client):
    assert load(server, "mine", "other").status_code == 200
    assert load(server, "mine", "other").json()["error"]["code"] == "name_taken"
    assert client.completions.create(model="mine", **ASKED).model == "mine"
    answer = httpx.post(f"{server.address}/v1/unload_lora_adapter", json={"lora_name": "mine"})
    assert answer.status_code == 200
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="mine", **ASKED)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("high", "rank"),
        ("broken", "is no adapter of this model"),
        ("nowhere", "expected a directory with an adapter_config.json"),
        ("../adapters", "expected a directory with an adapter_config.json"),
        ("x" * 5000, "expected a directory with an adapter_config.json"),
    ],
)
def test_adapters_that_do_not_fit_are_refused_when_they_are_loaded(server, adapters, path, message):
    answer = load(server, "new", path)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "lora_path")
    assert message in error["message"]
    assert str(adapters) not in error["message"]


def test_no_link_of_an_adapter_leads_out_of_lora_root(server, adapters, tmp_path):
    elsewhere = write_adapter(tmp_path / "elsewhere", 8)
    (adapters / "linked").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (adapters / "linked" / name).symlink_to(elsewhere / name)
    answer = load(server, "linked", "linked")
    assert answer.status_code == 400
    assert "outside of its directory" in answer.json()["error"]["message"]
    assert str(adapters) not in answer.json()["error"]["message"]


def test_links_that_change_after_an_adapter_was_loaded_are_not_followed(server, client, adapters, tmp_path):
    """The files are read again when a request first names the adapter."""
    late, elsewhere = write_adapter(adapters / "late", 4), write_adapter(tmp_path / "elsewhere", 8)
    assert load(server, "late", "late").status_code == 200
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (late / name).unlink()
        (late / name).symlink_to(elsewhere / name)
    with pytest.raises(openai.APIError, match="outside of its directory"):
        client.completions.create(model="late", **ASKED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--lora_modules", "bad=/nowhere"), "/nowhere"),
        (("--lora_modules", '{"name": "a"}'), "expected NAME=DIR"),
        (("--lora_modules", '{"name": "a", "path": "b", "base_model_name": "c"}'), "base_model_name"),
        (("--lora_root", "/nowhere"), "lora_root is '/nowhere': expected a directory"),
    ],
)
def test_a_server_does_not_start_with_adapters_that_it_cannot_serve(options, message):
    command = [sys.executable, "-m", "trtllm_lite", "serve", MODEL, *map(str, LIMITS), "--port", "0", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert message in line
