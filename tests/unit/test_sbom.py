"""The bill of materials: what went into an engine, in CycloneDX's form."""

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import pytest
from click.testing import CliRunner
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.models import save_tiny_model
from trtllm_lite.cli import cli
from trtllm_lite.convert.sources.licence import find_licence
from trtllm_lite.engine.provenance import PROVENANCE_FILE, Material
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.engine.sbom import SBOM_FILE, Bill, Package, write_sbom
from trtllm_lite.errors import ConvertError

CARD = "---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a card, a build file, and the engine that it makes, with provenance."""
    directory = tmp_path_factory.mktemp("built")
    save_tiny_model("llama", directory / "model")
    (directory / "model" / "README.md").write_text(CARD)
    limits = "  max_batch_size: 2\n  max_input_len: 8\n  max_seq_len: 16\n"
    (directory / "job.yaml").write_text(f"model:\n  model_dir: {directory / 'model'}\nbuild:\n{limits}")
    _build(directory, "engine")
    return directory


def _build(directory: Path, name: str) -> None:
    arguments = ["--config", str(directory / "job.yaml"), "--output_dir", str(directory / name), "--provenance"]
    result = CliRunner(env={"XDG_CACHE_HOME": str(directory / "cache")}).invoke(cli, ["build", *arguments])
    assert result.exit_code == 0, result.output


def _bill(engine: Path) -> Any:
    text = (engine / SBOM_FILE).read_text()
    errors = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert errors is None, errors
    return json.loads(text)


def _sha256(component: Any) -> str:
    (found,) = component["hashes"]
    assert found["alg"] == "SHA-256"
    return str(found["content"])


def test_it_lists_the_files_with_hashes_and_the_licence(directory: Path) -> None:
    bill = _bill(directory / "engine")
    files = {item["name"]: item for item in bill["components"] if "hashes" in item}
    model = {path.name: path for path in (directory / "model").iterdir()}
    assert files.keys() == model.keys() | {"job.yaml"}
    for name, path in (model | {"job.yaml": directory / "job.yaml"}).items():
        assert _sha256(files[name]) == hashlib.sha256(path.read_bytes()).hexdigest()
    for name in model:
        assert files[name]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert "licenses" not in files["job.yaml"]
    types = {name: files[name]["type"] for name in ("model.safetensors", "tokenizer.json", "job.yaml")}
    assert types == {"model.safetensors": "machine-learning-model", "tokenizer.json": "file", "job.yaml": "data"}


def test_it_is_about_the_engine(directory: Path) -> None:
    bill = _bill(directory / "engine")
    subject = bill["metadata"]["component"]
    assert subject["name"] == "LlamaForCausalLM"
    assert _sha256(subject) == hashlib.sha256((directory / "engine" / "rank0.engine").read_bytes()).hexdigest()
    (made_of,) = (item["dependsOn"] for item in bill["dependencies"] if item["ref"] == subject["bom-ref"])
    assert set(made_of) == {item["bom-ref"] for item in bill["components"]}


def test_it_lists_the_packages_that_took_part(directory: Path) -> None:
    bill = _bill(directory / "engine")
    packages = {item["name"]: item for item in bill["components"] if item["type"] in ("library", "application")}
    assert packages["trtllm_lite"]["version"] == version("trtllm_lite")
    assert packages["onnx-ir"]["version"] == version("onnx-ir")
    assert packages["numpy"]["purl"] == f"pkg:pypi/numpy@{version('numpy')}"
    assert packages["onnx"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert not packages.keys() & {"gguf", "sentencepiece", "nvidia-cuda-nvrtc"}  # this model and target need none


def test_the_same_build_gives_the_same_bytes(directory: Path) -> None:
    _build(directory, "again")
    for name in (SBOM_FILE, PROVENANCE_FILE):
        assert (directory / "engine" / name).read_bytes() == (directory / "again" / name).read_bytes()
    bill = _bill(directory / "again")
    assert not {"serialNumber", "timestamp"} & (bill | bill["metadata"]).keys()


def test_hostile_names_and_licences_stay_text(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "rank0.engine").write_bytes(b"")
    strange, digest = "../\x1b[2J\u202e\n", {"sha256": "0" * 64}
    packages = [Package("a", "1", "Apache-2.0 AND MIT"), Package("b", "2", strange), Package("c", "3", None)]
    files = [Material(strange, digest), Material("a.gguf", digest)]
    bill = Bill(Material("trtllm_lite", digest), None, files, strange, files, packages)
    write_sbom(tmp_path, read_engine(directory / "engine").manifest, bill)
    found = {item["name"]: item.get("licenses") for item in _bill(tmp_path)["components"]}
    assert found["a"] == [{"expression": "Apache-2.0 AND MIT"}]
    assert found["b"] == [{"license": {"name": "../\\x1b[2J\\u202e\\n"}}]
    assert found["c"] is None


@pytest.mark.parametrize(
    ("card", "config", "licence"),
    [
        (CARD, "{}", "apache-2.0"),
        (CARD.replace("\n", "\r\n"), "{}", "apache-2.0"),
        ("---\nlicense: other\nlicense_name: acme\n---\n", "{}", "acme"),
        ("# A model\n---\nlicense: mit\n---\n", '{"license": "bsd"}', "bsd"),
        ("---\nlicense: [mit]\n---\n", "{}", None),
        ("---\nlicense: mit\n", "{}", None),
        ("---\n- mit\n---\n", "{}", None),
        ("---\nlicense: !!python/object/apply:os.system ls\n---\n", "{}", None),
        ("---\n" + "[" * 5000 + "\n---\n", "{}", None),
        ("", "{}", None),
    ],
)
def test_a_model_says_its_licence(card: str, config: str, licence: str | None, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(card.encode())
    (tmp_path / "config.json").write_text(config)
    assert find_licence(tmp_path) == licence


def test_a_gguf_file_says_its_licence(tmp_path: Path) -> None:
    for licence in ("apache-2.0", None):
        writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
        writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
        if licence is not None:
            writer.add_license(licence)
        writer.add_block_count(3)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        assert find_licence(tmp_path / "model.gguf") == licence
    (tmp_path / "model.gguf").write_bytes((tmp_path / "model.gguf").read_bytes()[:40])
    with pytest.raises(ConvertError, match="complete GGUF file"):
        find_licence(tmp_path / "model.gguf")
