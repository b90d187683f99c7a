"""Registries that want https and a login, which comes from docker's configuration."""

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.registry.servers import answer, answer_with_tokens, make_certificate, serve
from tests.unit.registry.test_hostile import MANIFEST, honest
from tests.unit.registry.test_transfer import files, ignore
from trtllm_lite.errors import RegistryError
from trtllm_lite.registry import Reference, parse_reference, pull_engine, push_engine
from trtllm_lite.registry.credentials import find_credentials
from trtllm_lite.registry.session import RepositoryClient

ADDRESS = "127.0.0.2"  # an address of this machine that is only reached by https


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificate of ADDRESS."""
    return make_certificate(tmp_path_factory.mktemp("certificate"), ADDRESS)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[Reference]:
    """An engine's reference in a registry that lets "user" in with "secret"."""
    with serve(tmp_path_factory.mktemp("locked"), ADDRESS, certificate) as host:
        yield parse_reference(f"{host}/team/tiny:1")


@pytest.fixture
def trusted(locked: Reference, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reference:
    """The reference, for somebody who trusts the certificate and is logged in nowhere."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    return locked


def save(directory: Path, config: object) -> None:
    (directory / "docker" / "config.json").write_text(json.dumps(config))


def auths(host: str, password: str) -> dict[str, object]:
    return {"auths": {host: {"auth": base64.b64encode(f"user:{password}".encode()).decode()}}}


def test_dockers_login_is_used(trusted: Reference, engine: Path, tmp_path: Path) -> None:
    save(tmp_path, auths(trusted.host, "secret"))
    push_engine(engine, trusted, ignore)
    pull_engine(trusted, tmp_path / "engine", ignore)
    assert files(tmp_path / "engine") == files(engine)


@pytest.mark.parametrize("password", [None, "wrong"])
def test_without_the_right_login_nothing_goes(
    trusted: Reference, engine: Path, tmp_path: Path, password: str | None
) -> None:
    if password is not None:
        save(tmp_path, auths(trusted.host, password))
    with pytest.raises(RegistryError, match=r"wants another login for team/tiny: run `docker login 127\.0\.0\.2:"):
        push_engine(engine, trusted, ignore)


def test_tokens_are_fetched_and_shown(trusted: Reference, engine: Path, tmp_path: Path, certificate: Path) -> None:
    del trusted  # this server has the same certificate
    with answer_with_tokens(honest(engine), ADDRESS, certificate) as host:
        reference = parse_reference(f"{host}/team/tiny:1")
        save(tmp_path, auths(host, "wrong"))
        with pytest.raises(RegistryError, match="wants another login for team/tiny"):
            pull_engine(reference, tmp_path / "engine", ignore)
        save(tmp_path, auths(host, "secret"))
        pull_engine(reference, tmp_path / "engine", ignore)
    assert files(tmp_path / "engine") == files(engine)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b'"' + b"a" * (1 << 20), "ValueError: an answer of more than 1,048,576 bytes"),
        (b"[" * 100_000, "RecursionError"),
    ],
    ids=["large", "nested"],
)
def test_answers_that_hold_no_token_are_errors(
    token: bytes, message: str, trusted: Reference, tmp_path: Path, certificate: Path
) -> None:
    del trusted  # this server has the same certificate
    with answer_with_tokens({}, ADDRESS, certificate, token) as host:
        save(tmp_path, auths(host, "secret"))
        with pytest.raises(RegistryError, match=rf"does not answer as a registry does \({message}.*\): check the name"):
            pull_engine(parse_reference(f"{host}/team/tiny:1"), tmp_path / "engine", ignore)


@pytest.fixture
def netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that has a login for every machine, as curl and others read it."""
    (tmp_path / "netrc").write_text("default login user password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.mark.usefixtures("netrc")
def test_no_login_of_netrc_is_shown_by_plain_http(engine: Path, tmp_path: Path) -> None:
    answers = honest(engine)
    manifest = {MANIFEST: answers.pop(MANIFEST)}
    with answer(answers) as store, answer(manifest, elsewhere=store) as host:
        pull_engine(parse_reference(f"{host}/team/tiny:1"), tmp_path / "engine", ignore)
    assert files(tmp_path / "engine") == files(engine)


@pytest.mark.usefixtures("netrc")
def test_a_login_of_netrc_takes_no_tokens_place(
    trusted: Reference, engine: Path, tmp_path: Path, certificate: Path
) -> None:
    del trusted  # this server has the same certificate
    with answer_with_tokens(honest(engine), ADDRESS, certificate) as host:
        save(tmp_path, auths(host, "secret"))
        pull_engine(parse_reference(f"{host}/team/tiny:1"), tmp_path / "engine", ignore)


def test_a_credential_helper_is_asked(
    trusted: Reference, engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = tmp_path / "docker-credential-test"
    helper.write_text(
        '#!/bin/sh\nread host\n[ "$host" = known ] && echo broken && exit 1\n'
        f'[ "$host" = {trusted.host} ] || {{ echo "credentials not found in native keychain"; exit 1; }}\n'
        'echo \'{"Username": "user", "Secret": "secret"}\'\n'
    )
    helper.chmod(0o755)
    save(tmp_path, {"credsStore": "test"})
    with pytest.raises(RegistryError, match="docker-credential-test, which docker's configuration names, is not on"):
        push_engine(engine, trusted, ignore)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    push_engine(engine, trusted, ignore)
    assert find_credentials("other.example") is None
    with pytest.raises(RegistryError, match=r"docker-credential-test failed \(broken\)"):
        find_credentials("known")


def test_an_unknown_certificate_is_not_trusted(
    locked: Reference, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    with pytest.raises(RegistryError, match=r"cannot reach .* by https .*certificate.*REQUESTS_CA_BUNDLE"):
        push_engine(engine, locked, ignore)


@pytest.mark.parametrize(
    "challenge", ['Basic realm="test"', 'Bearer realm="https://tokens.example/token",scope="repository:a:pull"']
)
def test_no_password_goes_over_plain_http(challenge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer by plain http, which anybody may have written, cannot name the token server that gets the login."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with answer({}, challenge=challenge) as host:
        (tmp_path / "config.json").write_text(json.dumps(auths(host, "secret")))
        with pytest.raises(RegistryError, match="wants a password, which plain http shows to everybody: use https"):
            pull_engine(parse_reference(f"{host}/a:1"), tmp_path / "engine", ignore)


def test_a_login_is_shown_to_its_registry_alone() -> None:
    """Another host, which a registry names as the location for uploads, does not get the login."""
    with answer({"/store": b"stored"}) as elsewhere:  # this host answers 400 if there is a login
        client = RepositoryClient(parse_reference("registry.example.com/a:1"), insecure=False)
        client.auth._shown = {"Authorization": "Basic dXNlcjpzZWNyZXQ="}
        assert client.do_request(f"http://{elsewhere}/store").content == b"stored"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "is no configuration of docker"),
        ("[]", "is no configuration of docker"),
        ('{"auths": {"h.example": {"auth": "!"}}}', "is no configuration of docker"),
        ('{"auths": {"h.example": {"auth": "YWI="}}}', "is no configuration of docker .*no colon"),
        ('{"auths": {"h.example": {"identitytoken": "t"}}}', "with an identity token, which is not supported"),
    ],
)
def test_other_configurations_are_errors(
    config: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(RegistryError, match=message):
        find_credentials("h.example")
