"""Registries to test against: Debian's docker-registry as a process of its own, and servers with given answers."""

import base64
import http.server
import re
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

_CONFIG = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {directory}/data}}}}
http: {{addr: "{host}:0", secret: test{tls}}}
{auth}
"""
# What `htpasswd -nbB user secret` prints.
_HTPASSWD = "user:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"


def find_registry() -> str:
    """Return the path of the registry's program; without it the test is skipped."""
    found = shutil.which("docker-registry") or shutil.which("registry")
    if found is None:
        pytest.skip("there is no docker-registry: scripts/install_test_tools.sh installs it")
    return found


@contextmanager
def serve(directory: Path, host: str = "127.0.0.1", certificate: Path | None = None) -> Iterator[str]:
    """Run a registry; yields its host and port. With a ``certificate`` (and its .key) it requires https and a login."""
    (directory / "htpasswd").write_text(_HTPASSWD)
    tls = auth = ""
    if certificate is not None:
        tls = f", tls: {{certificate: {certificate}, key: {certificate.with_suffix('.key')}}}"
        auth = f"auth: {{htpasswd: {{realm: test, path: {directory}/htpasswd}}}}"
    config = directory / "config.yml"
    config.write_text(_CONFIG.format(directory=directory, host=host, tls=tls, auth=auth))
    command = [find_registry(), "serve", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        try:
            lines = iter(process.stderr)
            port = next(found[1] for line in lines if (found := re.search(r"listening on [^ ]*:(\d+)", line)))
            threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()  # so that the pipe never fills
            yield f"{host}:{port}"
        finally:
            process.terminate()


def make_certificate(directory: Path, address: str) -> Path:
    """A certificate that is its own authority, for an IP address, and its key beside it."""
    certificate = directory / "registry.crt"
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout"]
    names = ["-subj", "/CN=test", "-addext", f"subjectAltName=IP:{address}"]
    command = ["openssl", "req", "-x509", *key, str(certificate.with_suffix(".key")), *names, "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate


@contextmanager
def _serving(server: http.server.HTTPServer) -> Iterator[None]:
    """Run ``server`` in a thread, and stop it even if the test fails; else it would poll its closed socket forever."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


@contextmanager
def answer(
    answers: Mapping[str, bytes],
    endless: str | None = None,
    challenge: str | None = None,
    elsewhere: str | None = None,
) -> Iterator[str]:
    """A server that has ``answers`` under their paths; under ``endless`` it sends bytes until the client leaves.

    With a ``challenge`` every answer is 401 with this way to log in; requests that have a login get 400. Other paths
    are redirected to the host ``elsewhere``, if given.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "Authorization" in self.headers:
                self.send_error(400)
                return
            body = answers.get(self.path)
            status = 200 if body is not None or self.path == endless else 307 if elsewhere else 404
            self.send_response(status if challenge is None else 401)
            if status == 307:
                self.send_header("Location", f"http://{elsewhere}{self.path}")
            if challenge:
                self.send_header("WWW-Authenticate", challenge)
            if self.path != endless:
                self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            try:
                self.wfile.write(body or b"")
                while self.path == endless:
                    self.wfile.write(bytes(1 << 16))
            except OSError:  # the client has gone
                self.close_connection = True

        def do_HEAD(self) -> None:
            self.send_response(404)
            self.end_headers()

        def do_POST(self) -> None:
            self.send_response(202)  # without a Location header, to which the blob would be sent
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, _serving(server):
        yield f"127.0.0.1:{server.server_port}"


@contextmanager
def answer_with_tokens(
    answers: Mapping[str, bytes], host: str, certificate: Path, token: bytes = b'{"token": "valid"}'
) -> Iterator[str]:
    """An https server that gives ``answers`` to requests with a token, and tokens to "user" with password "secret".

    The large public registries do so, too: https://distribution.github.io/distribution/spec/auth/token/
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, asked = self.path.partition("?")
            shown = self.headers.get("Authorization")
            if path == "/token":
                known = shown == f"Basic {base64.b64encode(b'user:secret').decode()}"
                right = asked == "service=test&scope=repository%3Ateam%2Ftiny%3Apull"
                self._send(200 if known and right else 401, token)
            elif shown == "Bearer valid":
                self._send(200 if path in answers else 404, answers.get(path, b""))
            else:
                realm = f'realm="https://{self.headers["Host"]}/token"'
                self._send(401, b"", f'Bearer {realm},service="test",scope="repository:team/tiny:pull"')

        def _send(self, status: int, body: bytes, challenge: str | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if challenge is not None:
                self.send_header("WWW-Authenticate", challenge)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer((host, 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        with _serving(server):
            yield f"{host}:{server.server_port}"
