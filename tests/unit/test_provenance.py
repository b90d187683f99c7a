"""Provenance: the in-toto statement that a build writes about itself, and what `verify` accepts and refuses."""

import hashlib
import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from click.testing import CliRunner
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage

from tests.models import save_tiny_model
from tests.unit.builder.checkpoints import save_checkpoint
from trtllm_lite.cli import cli
from trtllm_lite.engine.format import CONFIG_FILE, ENGINE_FILE
from trtllm_lite.engine.provenance import BUILD_TYPE, PROVENANCE_FILE, Material
from trtllm_lite.engine.sbom import SBOM_FILE
from trtllm_lite.engine.verification import check_engine, verify_engine
from trtllm_lite.errors import EngineError

LIMITS = {"max_batch_size": 2, "max_input_len": 8, "max_seq_len": 16}
FILES = {ENGINE_FILE, CONFIG_FILE, "tokenizer.json", "tokenizer_config.json", SBOM_FILE}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _build(checkpoint: Path, output: Path) -> None:
    limits = [text for name, value in LIMITS.items() for text in (f"--{name}", str(value))]
    arguments = ["build", "--checkpoint_dir", str(checkpoint), "--output_dir", str(output), *limits, "--provenance"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a checkpoint, and an engine with provenance."""
    directory = tmp_path_factory.mktemp("built")
    _build(save_checkpoint(directory / "checkpoint"), directory / "engine")
    return directory


@pytest.fixture
def engine(built: Path, tmp_path: Path) -> Path:
    """An engine with provenance, beside the checkpoint that it was made of."""
    return shutil.copytree(built, tmp_path / "built") / "engine"


def _statement(engine: Path) -> Any:
    return json.loads((engine / PROVENANCE_FILE).read_text())


def test_the_statement_is_in_totos_and_slsas(engine: Path) -> None:
    statement = _statement(engine)
    message = json_format.ParseDict(statement, StatementMessage())
    Statement.copy_from_pb(message).validate()
    predicate = json_format.ParseDict(statement["predicate"], provenance_pb2.Provenance())
    assert predicate.build_definition.build_type
    assert predicate.run_details.builder.id
    assert {item.name: item.digest["sha256"] for item in message.subject} == {
        name: _digest(engine / name) for name in FILES
    }


def test_it_says_what_the_engine_was_made_of(engine: Path) -> None:
    provenance = verify_engine(engine)
    assert provenance.parameters == {"build": LIMITS}
    checkpoint = engine.parent / "checkpoint"
    read = {item.name: item.digest["sha256"] for item in provenance.materials}
    assert {path.name: _digest(path) for path in checkpoint.iterdir()}.items() <= read.items()
    assert len(read["trtllm_lite"]) == 64
    assert {"trtllm_lite", "numpy", "onnx"} <= provenance.versions.keys()
    assert provenance.versions["python"] == platform.python_version()


def test_the_same_build_gives_the_same_statement(engine: Path) -> None:
    _build(engine.parent / "checkpoint", engine.parent / "again")
    assert (engine / PROVENANCE_FILE).read_bytes() == (engine.parent / "again" / PROVENANCE_FILE).read_bytes()
    _build(engine.parent / "checkpoint", engine)  # replaces an engine with provenance
    assert verify_engine(engine)


def _job(directory: Path, model_dir: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine built in ``directory`` by a build file, of a model that is found from there."""
    limits = "".join(f"  {name}: {value}\n" for name, value in LIMITS.items())
    (directory / "job.yaml").write_text(f"model:\n  model_dir: {model_dir}\nbuild:\n{limits}")
    monkeypatch.chdir(directory)
    arguments = ["build", "--config", "job.yaml", "--output_dir", "engine", "--provenance"]
    result = CliRunner(env={"XDG_CACHE_HOME": str(directory / "cache")}).invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return directory / "engine"


def test_the_same_build_in_another_place_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny_model("llama", tmp_path / "a" / "models" / "tiny")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    a, b = (_job(tmp_path / name, "models/tiny", monkeypatch) for name in "ab")
    for name in (PROVENANCE_FILE, SBOM_FILE):
        assert (a / name).read_bytes() == (b / name).read_bytes()
    assert verify_engine(a).parameters == {"build": LIMITS, "model": {"model_dir": "tiny"}}


def test_a_model_of_the_hub_is_named_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    snapshot = tmp_path / "models--acme--tiny-model" / "snapshots" / commit
    save_tiny_model("llama", snapshot)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(snapshot))
    provenance = verify_engine(_job(tmp_path, "acme/tiny-model", monkeypatch))
    (model,) = (item for item in provenance.materials if item.uri is not None)
    assert model == Material("acme/tiny-model", {"gitCommit": commit}, f"pkg:huggingface/acme/tiny-model@{commit}")
    assert provenance.parameters["model"] == {"model_dir": "acme/tiny-model"}
    bill = json.loads((tmp_path / "engine" / SBOM_FILE).read_text())
    assert {"name": "trtllm_lite:model", "value": model.uri} in bill["metadata"]["component"]["properties"]


def test_verify_prints_what_went_in(engine: Path) -> None:
    result = CliRunner().invoke(cli, ["verify", str(engine)])
    assert result.exit_code == 0
    assert f"{engine}: the same as its provenance says: 5 files, made by trtllm_lite" in result.output
    assert "unsigned: anybody may have written the files and the statement" in result.output
    assert "made of network.onnx: sha256 " in result.output
    found = json.loads(CliRunner().invoke(cli, ["verify", str(engine), "--json"]).output)
    assert found["files"].keys() == FILES
    assert found["signed_by"] is None


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_changed_file_is_named(engine: Path, name: str) -> None:
    with open(engine / name, "ab") as file:
        file.write(b" ")
    with pytest.raises(EngineError, match=rf"the sha256 of {name} is {_digest(engine / name)}, expected .*build it ag"):
        verify_engine(engine)


@pytest.mark.parametrize("name", sorted({*FILES, PROVENANCE_FILE} - {SBOM_FILE}))
@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
def test_files_that_are_none_are_errors_at_once(engine: Path, name: str, kind: str) -> None:
    (engine / name).rename(engine.parent / "elsewhere")
    if kind == "pipe":
        os.mkfifo(engine / name)
    else:
        (engine / name).symlink_to("/dev/zero" if kind == "device" else engine.parent / "elsewhere")
    with pytest.raises(EngineError, match=r"cannot read .*(not a plain file|a link to a file outside)"):
        check_engine(engine)


def test_missing_and_foreign_files_are_named(engine: Path) -> None:
    (engine / "tokenizer.json").unlink()
    (engine / "more.bin").write_bytes(b"")
    with pytest.raises(EngineError, match=r"tokenizer\.json is missing; more\.bin is not in the statement"):
        verify_engine(engine)


def test_a_manifest_of_another_engine_is_refused(engine: Path) -> None:
    """The engine's own manifest decides, even if the statement agrees with the files."""
    config = json.loads((engine / CONFIG_FILE).read_text())
    config["limits"]["max_batch_size"] = 3
    (engine / CONFIG_FILE).write_text(json.dumps(config))
    statement = _statement(engine)
    for item in statement["subject"]:
        item["digest"]["sha256"] = _digest(engine / item["name"])
    (engine / PROVENANCE_FILE).write_text(json.dumps(statement))
    with pytest.raises(EngineError, match=r"config\.json is not the manifest of rank0\.engine"):
        verify_engine(engine)


def _with_versions(versions: object) -> dict[str, Any]:
    definition = {"buildType": BUILD_TYPE, "externalParameters": {}, "resolvedDependencies": []}
    return {"predicate": {"buildDefinition": definition, "runDetails": {"builder": {"version": versions}}}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_type": "https://in-toto.io/Statement/v0.1"}, "is no in-toto statement"),
        ({"predicateType": "https://spdx.dev/Document"}, "is no in-toto statement"),
        ({"predicate": {}}, "lacks a field, or a field has the wrong type"),
        ({"subject": [{"name": "rank0.engine"}]}, "lacks a field"),
        ({"subject": 3}, "lacks a field"),
        (_with_versions([]), "lacks a field"),
        (_with_versions({}), "lacks a field"),
        (
            {"predicate": {"buildDefinition": {"buildType": "other"}, "runDetails": {}}},
            "has buildType 'other', expected",
        ),
    ],
)
def test_other_statements_are_refused(engine: Path, change: dict[str, Any], message: str) -> None:
    (engine / PROVENANCE_FILE).write_text(json.dumps(_statement(engine) | change))
    with pytest.raises(EngineError, match=message):
        verify_engine(engine)


def test_hostile_text_is_printed_as_text(engine: Path) -> None:
    statement = _statement(engine)
    definition, run = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
    definition["resolvedDependencies"][0]["name"] = run["builder"]["version"]["trtllm_lite"] = "\x1b[2J"
    (engine / PROVENANCE_FILE).write_text(json.dumps(statement))
    output = CliRunner().invoke(cli, ["verify", str(engine)]).output
    assert "\x1b" not in output
    assert output.count(r"\x1b[2J") == 2


def test_a_directory_is_no_file_of_an_engine(engine: Path) -> None:
    (engine / SBOM_FILE).unlink()
    (engine / SBOM_FILE).mkdir()
    with pytest.raises(EngineError, match=r"cannot read .*sbom\.json: it is not a plain file"):
        verify_engine(engine)


@pytest.mark.parametrize("name", [PROVENANCE_FILE, CONFIG_FILE, "tokenizer_config.json"])
def test_files_that_are_too_large_are_not_read(engine: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is too large is refused, whether a build or somebody else put it into the statement."""
    sizes = {path.name: path.stat().st_size for path in engine.iterdir()}
    limits = sizes | {name: sizes[name] - 1}
    monkeypatch.setattr("trtllm_lite.engine.provenance.max_file_bytes", limits.__getitem__)
    with pytest.raises(
        EngineError, match=rf"{name}: it has {sizes[name]:,} bytes, which exceeds the limit of {limits[name]:,}"
    ):
        verify_engine(engine)


def test_an_engine_without_provenance_is_refused(engine: Path) -> None:
    for damage in (b"{", b"[]"):
        (engine / PROVENANCE_FILE).write_bytes(damage)
        with pytest.raises(EngineError, match=r"provenance\.json"):
            verify_engine(engine)
    (engine / PROVENANCE_FILE).unlink()
    with pytest.raises(EngineError, match="build it again with --provenance"):
        verify_engine(engine)
