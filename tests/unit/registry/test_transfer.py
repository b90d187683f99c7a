"""Engines go to a real registry and come back."""

import hashlib
import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from trtllm_lite.cli import cli
from trtllm_lite.engine.verification import sign_provenance, verify_engine
from trtllm_lite.errors import ArgumentError, EngineError, OutputError, RegistryError
from trtllm_lite.registry import parse_reference, pull_engine, push_engine
from trtllm_lite.registry.artifact import Descriptor
from trtllm_lite.registry.client import Registry


def run(*arguments: object) -> str:
    """The output of a command that succeeds."""
    result = CliRunner().invoke(cli, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def ignore(_work: str, _done: int, _total: int) -> None:
    """A report of progress that nobody reads."""


def artifact(registry: str, name: str) -> tuple[Any, str]:
    """The manifest in the registry, read without the package under test, and the digest that the registry gives."""
    host, _, path = f"{registry}/{name}".partition("/")
    request = Request(f"http://{host}/v2/{path.replace(':', '/manifests/')}")
    request.add_header("Accept", "application/vnd.oci.image.manifest.v1+json")
    with urlopen(request) as response:
        return json.loads(response.read()), response.headers["Docker-Content-Digest"]


def test_an_engine_comes_back_as_it_was(engine: Path, registry: str, tmp_path: Path) -> None:
    pushed = run("push", engine, f"{registry}/team/tiny:1.0").splitlines()
    assert pushed[0] == f"pushed {engine} as {registry}/team/tiny:1.0"
    pulled = run("pull", f"{registry}/team/tiny:1.0", "--output_dir", tmp_path / "by tag")
    assert pushed[1] in pulled
    assert "checked: digests and provenance; the engine was made by trtllm_lite 0." in pulled
    assert "unsigned" in pulled
    run("pull", pushed[1], "--output_dir", tmp_path / "by digest")
    assert files(tmp_path / "by tag") == files(tmp_path / "by digest") == files(engine)
    assert verify_engine(tmp_path / "by tag")


def test_the_artifact_says_what_it_is(engine: Path, registry: str) -> None:
    last_line = run("push", engine, f"{registry}/team/described:1").splitlines()[-1]
    found, digest = artifact(registry, "team/described:1")
    assert last_line == f"{registry}/team/described@{digest}"
    assert found["artifactType"] == "application/vnd.trtllm-lite.engine.v1"
    assert found["config"]["mediaType"] == "application/vnd.trtllm-lite.engine.config.v1+json"
    assert "TestForCausalLM (full_prec) for cpu" in found["annotations"]["org.opencontainers.image.description"]
    layers = {layer["annotations"]["org.opencontainers.image.title"]: layer for layer in found["layers"]}
    contents = files(engine)
    assert {name: (layer["digest"], layer["size"]) for name, layer in layers.items()} == {
        name: (f"sha256:{hashlib.sha256(data).hexdigest()}", len(data)) for name, data in contents.items()
    }
    assert layers["rank0.engine"]["mediaType"] == "application/vnd.trtllm-lite.engine.rank.v1"
    assert layers["provenance.json"]["mediaType"] == "application/vnd.in-toto+json"


def test_the_same_engine_has_the_same_digest(engine: Path, registry: str) -> None:
    digests = {push_engine(engine, parse_reference(f"{registry}/team/same:{tag}"), ignore) for tag in "ab"}
    assert len(digests) == 1


def test_an_engine_without_provenance_travels_too(plain_engine: Path, registry: str, tmp_path: Path) -> None:
    run("push", plain_engine, f"{registry}/plain")
    pulled = run("pull", f"{registry}/plain:latest", "--output_dir", tmp_path / "engine")
    assert "the engine has no provenance to verify" in pulled
    assert files(tmp_path / "engine") == files(plain_engine)


def test_provenance_and_signatures_can_be_demanded(
    engine: Path, plain_engine: Path, registry: str, tmp_path: Path
) -> None:
    plain, signed = parse_reference(f"{registry}/demands:plain"), parse_reference(f"{registry}/demands:signed")
    push_engine(plain_engine, plain, ignore)
    with pytest.raises(EngineError, match=r"cannot read .*provenance\.json"):
        pull_engine(plain, tmp_path / "plain", ignore, require_provenance=True)
    assert not (tmp_path / "plain").exists()
    shutil.copytree(engine, tmp_path / "signed")
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "key").write_bytes(private)
    (tmp_path / "pub").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    key_id = sign_provenance(tmp_path / "signed", tmp_path / "key")
    push_engine(tmp_path / "signed", signed, ignore)
    pulled = pull_engine(signed, tmp_path / "pulled", ignore, key_file=tmp_path / "pub")
    assert pulled.engine.trust.key_id == key_id
    push_engine(engine, signed, ignore)
    with pytest.raises(EngineError, match="is not signed"):
        pull_engine(signed, tmp_path / "unsigned", ignore, key_file=tmp_path / "pub")


def test_only_an_older_engine_is_replaced(engine: Path, plain_engine: Path, registry: str, tmp_path: Path) -> None:
    reference = parse_reference(f"{registry}/team/tiny:replaces")
    push_engine(plain_engine, reference, ignore)
    shutil.copytree(engine, tmp_path / "engine")
    pull_engine(reference, tmp_path / "engine", ignore)
    assert files(tmp_path / "engine") == files(plain_engine)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(OutputError, match="holds other files"):
        pull_engine(reference, tmp_path / "mine", ignore)


def test_what_is_not_there_is_an_error(registry: str, tmp_path: Path) -> None:
    for name in ("nobody/nothing:1", f"nobody/nothing@sha256:{'0' * 64}"):
        with pytest.raises(RegistryError, match=r"refuses .*nobody/nothing.* \(404 Not Found, .+\): check the ref"):
            pull_engine(parse_reference(f"{registry}/{name}"), tmp_path / "engine", ignore)
    assert not list(tmp_path.iterdir())


def test_a_registry_that_is_not_there_is_an_error(engine: Path) -> None:
    with pytest.raises(RegistryError, match=r"cannot reach localhost:1 .*check the name"):
        push_engine(engine, parse_reference("localhost:1/team/tiny:1"), ignore)


def test_only_sound_engines_are_pushed(engine: Path, plain_engine: Path, registry: str, tmp_path: Path) -> None:
    reference = parse_reference(f"{registry}/team/unsound:1")
    for source, name in ((engine, "tokenizer.json"), (plain_engine, "tokenizer.json"), (plain_engine, "config.json")):
        damaged = shutil.copytree(source, tmp_path / f"{source.parent.name} {name}")
        (damaged / name).write_text('{"other": 1}')
        with pytest.raises(EngineError, match=name.replace(".", r"\.")):
            push_engine(damaged, reference, ignore)
    weights = shutil.copytree(plain_engine, tmp_path / "weights")
    data = bytearray((weights / "rank0.engine").read_bytes())
    data[-1] ^= 1
    (weights / "rank0.engine").write_bytes(data)
    with pytest.raises(EngineError, match="checksum"):
        push_engine(weights, reference, ignore)
    with pytest.raises(RegistryError, match="404"):
        pull_engine(reference, tmp_path / "engine", ignore)


def test_other_files_are_not_pushed(plain_engine: Path, registry: str, tmp_path: Path) -> None:
    directory = shutil.copytree(plain_engine, tmp_path / "engine")
    (directory / "secrets.txt").write_text("mine")
    with pytest.raises(EngineError, match=r"holds secrets\.txt, which is no part of an engine: move it away"):
        push_engine(directory, parse_reference(f"{registry}/team/more:1"), ignore)
    with pytest.raises(EngineError, match=r"does not exist|holds none"):
        push_engine(tmp_path / "absent", parse_reference(f"{registry}/team/more:1"), ignore)


@pytest.mark.parametrize("text", ["tiny", "team/tiny:1", "h.example/Team:1", "h.example/../a", "h.example/a:b:c", ""])
def test_references_are_checked(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"expected a reference like .*: correct it"):
        parse_reference(text)


def test_a_digest_is_no_place_to_push_to(engine: Path) -> None:
    with pytest.raises(ArgumentError, match="push to a tag"):
        push_engine(engine, parse_reference(f"localhost:1/a@sha256:{'0' * 64}"), ignore)


def test_large_files_are_never_in_memory(registry: str, tmp_path: Path) -> None:
    num_bytes = 12 << 20
    with open(tmp_path / "large", "wb") as file:
        file.truncate(num_bytes)
    client = Registry(parse_reference(f"{registry}/team/large:1"), plain_http=False)
    sent: list[int] = []
    tracemalloc.start()
    digest = client.push(str(tmp_path / "large"), sent.append)
    received = sum(len(piece) for piece in client.pull(Descriptor("", digest, num_bytes, {})))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(sent) == received == num_bytes
    assert peak < num_bytes / 2
    sent.clear()
    assert client.push(str(tmp_path / "large"), sent.append) == digest
    assert not sent  # the registry has it already
