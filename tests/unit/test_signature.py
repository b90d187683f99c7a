"""Signatures of provenance, which OpenSSL's keys make and another library checks."""

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.unit.builder.checkpoints import save_checkpoint
from trtllm_lite.cli import cli
from trtllm_lite.engine.provenance import PROVENANCE_FILE
from trtllm_lite.engine.sbom import SBOM_FILE
from trtllm_lite.engine.signature import SIGNATURE_FILE

KINDS = {"ed25519": ["-algorithm", "ed25519"], "ecdsa": ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)))


def refusal(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    return result.output


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine with provenance, and keys of two kinds."""
    directory = tmp_path_factory.mktemp("signed")
    save_checkpoint(directory / "checkpoint")
    limits = ["--max_batch_size", 2, "--max_input_len", 8, "--max_seq_len", 16]
    paths = ["--checkpoint_dir", directory / "checkpoint", "--output_dir", directory / "engine"]
    assert run("build", *paths, *limits, "--provenance").exit_code == 0
    for kind, options in KINDS.items():
        key, public = directory / f"{kind}.key", directory / f"{kind}.pub"
        subprocess.run(["openssl", "genpkey", *options, "-out", key], check=True, capture_output=True)
        subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
    return directory


@pytest.fixture
def engine(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built / "engine", tmp_path / "engine")


@pytest.mark.parametrize("kind", KINDS)
def test_a_signed_engine_is_verified_by_its_key_alone(built: Path, engine: Path, kind: str) -> None:
    assert "is not signed" in refusal("verify", engine, "--key", built / f"{kind}.pub")
    assert run("sign", engine, "--key", built / f"{kind}.key").exit_code == 0
    verified = run("verify", engine, "--key", built / f"{kind}.pub").output
    assert f"{engine}: verified: 5 files" in verified
    assert "signed by the key " in verified
    assert "its signature was not checked" in run("verify", engine).output
    (other,) = KINDS.keys() - {kind}
    assert "no valid signature by the key of" in refusal("verify", engine, "--key", built / f"{other}.pub")


def test_another_library_takes_the_envelope(built: Path, engine: Path) -> None:
    run("sign", engine, "--key", built / "ecdsa.key")
    envelope = json.loads((engine / SIGNATURE_FILE).read_text())
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
    assert payload == (engine / PROVENANCE_FILE).read_bytes()
    key = serialization.load_pem_public_key((built / "ecdsa.pub").read_bytes())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    key.verify(base64.b64decode(envelope["signatures"][0]["sig"]), signed, ec.ECDSA(hashes.SHA256()))


def test_an_edited_statement_is_refused(built: Path, engine: Path) -> None:
    """Without the key, nobody sees that an SBOM was dropped from both the files and the statement."""
    run("sign", engine, "--key", built / "ed25519.key")
    (engine / SBOM_FILE).unlink()
    statement = json.loads((engine / PROVENANCE_FILE).read_text())
    statement["subject"] = [item for item in statement["subject"] if item["name"] != SBOM_FILE]
    (engine / PROVENANCE_FILE).write_text(json.dumps(statement))
    assert "4 files" in run("verify", engine).output
    assert "signs another statement" in refusal("verify", engine, "--key", built / "ed25519.pub")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"payload": 1}', b'{"payload": "", "payloadType": "", "signatures": [1]}']
)
def test_envelopes_that_are_none_are_refused(built: Path, engine: Path, content: bytes) -> None:
    (engine / SIGNATURE_FILE).write_bytes(content)
    assert "is no DSSE envelope" in refusal("verify", engine, "--key", built / "ed25519.pub")


def test_keys_that_are_none_are_refused(built: Path, engine: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no key")
    assert "is not a private key that can be used" in refusal("sign", engine, "--key", tmp_path / "text")
    assert "is not a private key that can be used" in refusal("sign", engine, "--key", built / "ed25519.pub")
    assert "is not a public key that can be used" in refusal("verify", engine, "--key", built / "ed25519.key")
    assert "cannot be read" in refusal("sign", engine, "--key", tmp_path / "absent")
    assert not (engine / SIGNATURE_FILE).exists()


def test_an_engine_that_was_changed_is_not_signed(built: Path, engine: Path) -> None:
    with open(engine / "config.json", "ab") as file:
        file.write(b" ")
    assert "the sha256 of config.json" in refusal("sign", engine, "--key", built / "ed25519.key")
