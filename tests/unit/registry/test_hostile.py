"""Registries that lie: no file that they send is kept."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.registry.servers import answer
from tests.unit.registry.test_transfer import ignore
from trtllm_lite.engine.provenance import read_provenance
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import EngineError, OutputError, RegistryError
from trtllm_lite.registry import parse_reference, pull_engine, push_engine
from trtllm_lite.registry.artifact import LAYER_TYPES, MAX_MANIFEST_BYTES, TITLE, Descriptor, artifact_of

MANIFEST = "/v2/team/tiny/manifests/1"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def honest(engine: Path) -> dict[str, bytes]:
    """The answers of a registry that has the engine."""
    contents = {path.name: path.read_bytes() for path in sorted(engine.iterdir())}
    layers = tuple(
        Descriptor(LAYER_TYPES[name], digest_of(data), len(data), {TITLE: name}) for name, data in contents.items()
    )
    text = artifact_of(layers, read_engine(engine).manifest).to_json()
    blobs = {f"/v2/team/tiny/blobs/{digest_of(data)}": data for data in contents.values()}
    return {MANIFEST: text.encode(), **blobs}


def pull(answers: dict[str, bytes], output: Path, selector: str = ":1", endless: str | None = None) -> None:
    with answer(answers, endless) as host:
        pull_engine(parse_reference(f"{host}/team/tiny{selector}"), output, ignore)


def refused(answers: dict[str, bytes], output: Path, message: str, **how: Any) -> None:
    """Check that the pull fails with ``message`` and leaves no file."""
    with pytest.raises((EngineError, OutputError, RegistryError), match=message):
        pull(answers, output / "engine", **how)
    assert not list(output.iterdir())


def test_an_honest_registry_is_believed(engine: Path, tmp_path: Path) -> None:
    pull(honest(engine), tmp_path / "engine")
    assert read_provenance(tmp_path / "engine")


def _titled(name: str) -> Callable[[Any], None]:
    def change(manifest: Any) -> None:
        manifest["layers"][-1]["annotations"][TITLE] = name

    return change


def _set(key: str, value: Any, place: Callable[[Any], Any] = lambda manifest: manifest) -> Callable[[Any], None]:
    def change(manifest: Any) -> None:
        place(manifest)[key] = value

    return change


def _repeat(manifest: Any) -> None:
    manifest["layers"].append(manifest["layers"][-1])


def _drop_engine(manifest: Any) -> None:
    manifest["layers"] = [layer for layer in manifest["layers"] if layer["annotations"][TITLE] != "rank0.engine"]


def _last(manifest: Any) -> Any:
    return manifest["layers"][-1]


def _engine(manifest: Any) -> Any:
    return next(layer for layer in manifest["layers"] if layer["annotations"][TITLE] == "rank0.engine")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_titled("../escaped"), r"holds '\.\./escaped' of type .*, which is no file of an engine: do not trust it"),
        (_titled("/etc/passwd"), "holds '/etc/passwd' of type"),
        (_titled("\x1b[2J"), r"holds '\\x1b\[2J' of type"),
        (_titled("rank0.engine"), "holds 'rank0.engine' of type .*tokenizer"),
        (_repeat, "should hold each file of an engine once"),
        (_drop_engine, "should hold each file of an engine once"),
        (_set("config", {}), "expected the keys mediaType, digest"),
        (_set("artifactType", "application/vnd.other"), "is no engine: its artifactType is 'application/vnd.other'"),
        (_set("mediaType", "application/vnd.oci.image.index.v1+json"), "mediaType: expected application/vnd.oci.image"),
        (_set("schemaVersion", 1), "schemaVersion: expected 2, found 1"),
        (_set("layers", 3), "layers: expected a list, found 3"),
        (_set("digest", "sha256:../../../etc", _last), "digest: expected sha256: and 64 hexadecimal digits"),
        (_set("digest", "md5:00", _last), "digest: expected sha256: and 64 hexadecimal digits"),
        (_set("size", -1, _last), "size: expected an integer from 1 to"),
        (_set("size", 1 << 49, _engine), "the output needs .* free"),
        (_set("size", 1 << 49, _last), "tokenizer_config.json of .* has 562,949,953,421,312 bytes, expected at most"),
        (_set("size", 3, _last), "tokenizer_config.json of .* has more bytes, expected 3"),
        (_set("size", 1000, _last), r"tokenizer_config.json of .* has \d+ bytes, expected 1,000"),
        (_set("digest", f"sha256:{'0' * 64}", _last), "refuses .*404"),
    ],
)
def test_a_manifest_that_lies_is_refused(
    change: Callable[[Any], None], message: str, engine: Path, tmp_path: Path
) -> None:
    answers = honest(engine)
    manifest = json.loads(answers[MANIFEST])
    change(manifest)
    refused({**answers, MANIFEST: json.dumps(manifest).encode()}, tmp_path, message)


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"[]", b"\xff", b'{"artifactType": 1, "artifactType": 2}'])
def test_what_is_no_manifest_is_refused(text: bytes, tmp_path: Path) -> None:
    refused({MANIFEST: text}, tmp_path, "the manifest of .*: expected JSON|is no engine: its artifactType is None")


def test_endless_answers_end(engine: Path, tmp_path: Path) -> None:
    refused({}, tmp_path, f"larger than the limit of {MAX_MANIFEST_BYTES:,} bytes", endless=MANIFEST)
    answers = honest(engine)
    blob = next(path for path in answers if "blobs" in path)
    del answers[blob]
    refused(answers, tmp_path, "has more bytes, expected", endless=blob)


def test_other_bytes_than_the_digest_says_are_refused(engine: Path, tmp_path: Path) -> None:
    answers = honest(engine)
    for path in answers:
        if path != MANIFEST:
            changed = bytes([answers[path][0] ^ 1]) + answers[path][1:]
            refused({**answers, path: changed}, tmp_path, "sent something else as .*: do not trust it")


def test_another_artifact_than_the_digest_says_is_refused(engine: Path, tmp_path: Path) -> None:
    answers = honest(engine)
    wanted = digest_of(b"another")
    answers[f"/v2/team/tiny/manifests/{wanted}"] = answers[MANIFEST]
    found = digest_of(answers[MANIFEST])
    refused(answers, tmp_path, f"sent an artifact of the digest {found} as .*do not trust", selector=f"@{wanted}")


@pytest.mark.parametrize("name", ["rank0.engine", "config.json", "tokenizer.json", "provenance.json"])
def test_an_engine_that_is_damaged_is_refused(name: str, engine: Path, tmp_path: Path) -> None:
    """All digests of the artifact are right, but one file of the engine is damaged."""
    answers = honest(engine)
    manifest = json.loads(answers[MANIFEST])
    layer = next(layer for layer in manifest["layers"] if layer["annotations"][TITLE] == name)
    changed = answers[f"/v2/team/tiny/blobs/{layer['digest']}"] + b" "
    old = layer["digest"]
    for descriptor in (*manifest["layers"], manifest["config"]):
        if descriptor["digest"] == old:
            descriptor.update(digest=digest_of(changed), size=len(changed))
    if name == "provenance.json":
        changed = changed.replace(b"rank0.engine", b"rank9.engine")
        layer.update(digest=digest_of(changed), size=len(changed))
    answers |= {MANIFEST: json.dumps(manifest).encode(), f"/v2/team/tiny/blobs/{digest_of(changed)}": changed}
    refused(answers, tmp_path, "is not the engine of its provenance.json|the sha256 of")


def test_what_is_no_registry_is_an_error(engine: Path) -> None:
    with answer({}) as host, pytest.raises(RegistryError, match=r"does not answer as a registry does .*check the name"):
        push_engine(engine, parse_reference(f"{host}/a:1"), ignore)
