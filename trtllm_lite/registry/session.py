"""Sends requests to one repository of a registry, by the package ``oras``, with the login that the registry asks for.

The package knows the addresses of a registry, what its challenges say and how tokens are fetched:
https://distribution.github.io/distribution/spec/auth/token/. Here it sends nothing twice, keeps logins from plain http
and other hosts, and reads no more of an answer than is needed.
"""

from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import requests
from oras.auth.token import TokenAuth
from oras.auth.utils import get_basic_auth, parse_auth_header
from oras.container import Container
from oras.provider import Registry as OrasRegistry

from trtllm_lite.errors import RegistryError
from trtllm_lite.registry.credentials import find_credentials
from trtllm_lite.registry.reference import Reference

_HUB = {"docker.io": "registry-1.docker.io"}
_TIMEOUT = 300.0  # seconds without a byte; a registry may hash a large blob before it answers
_PIECE = 1 << 20
_MAX_ANSWER_BYTES = 1 << 20  # bound on answers that are not streamed; one with a token has some thousand bytes


class RepositoryClient(OrasRegistry):
    """The repository of ``reference``; ``insecure`` means plain http.

    Requests raise RegistryError if the registry wants another login, and what ``requests`` raises for other errors, of
    which statuses above 399 are HTTPError.
    """

    def __init__(self, reference: Reference, insecure: bool) -> None:
        host = _HUB.get(reference.host, reference.host)
        super().__init__(host, insecure=insecure)
        self._reference = reference
        self.session = _Session()
        self.auth = _Login(reference)
        self.auth.session, self.auth.prefix, self.auth._tls_verify = self.session, self.prefix, True
        # The package finds a host only by its dot or port, which "localhost" may lack.
        self.container = Container(f"registry.invalid/{reference.name}:{reference.tag}")
        self.container.registry, self.container.digest = host, reference.digest

    def url(self, path: str) -> str:
        """The address of ``path`` in the repository, as in "manifests/latest"."""
        return f"{self.prefix}://{self.container.registry}/v2/{self.container.api_prefix}/{path}"

    def do_request(
        self,
        url: str,
        method: str = "GET",
        data: Any = None,
        headers: Any = None,
        json: Any = None,
        stream: bool = True,
    ) -> requests.Response:
        """The answer to a request, which is sent again with a login if the registry asks for one.

        ``data`` that is read while it is sent must not need a login that no request before has shown.
        """
        headers = dict(headers or {})
        if urlsplit(url).netloc == self.container.registry:
            headers |= self.auth.get_auth_header()
        response = self.session.request(method, url, data=data, json=json, headers=headers, stream=stream)
        if response.status_code == requests.codes.unauthorized:
            with response:
                headers, changed = self.auth.authenticate_request(response, headers, refresh=True)
            if changed:
                response = self.session.request(method, url, data=data, json=json, headers=headers, stream=stream)
            if response.status_code == requests.codes.unauthorized:
                host, name = self._reference.host, self._reference.name
                raise RegistryError(f"{host} wants another login for {name}: {log_in_remedy(self._reference)}")
        response.raise_for_status()
        return response


def log_in_remedy(reference: Reference) -> str:
    """What a user can do whose login does not suffice."""
    return f"run `docker login {reference.host}` with an account that may do this"


def first_bytes(response: requests.Response, count: int) -> bytes:
    """The first ``count`` bytes of a streamed answer, or all if there are fewer."""
    data = b""
    for piece in response.iter_content(_PIECE):
        data += piece
        if len(data) >= count:
            break
    return data[:count]


class _Login(TokenAuth):
    """Answers a registry's challenges by docker's login, and shows the answer with later requests."""

    def __init__(self, reference: Reference) -> None:
        super().__init__()
        self._reference = reference
        self._shown: dict[str, str] = {}

    def get_auth_header(self) -> dict[str, str]:
        """The header that shows the login; empty while no request has needed it."""
        return self._shown

    def authenticate_request(
        self, original: requests.Response, headers: dict[str, str], refresh: bool = False
    ) -> tuple[dict[str, str], bool]:
        """The headers with which a refused request may be allowed, and whether they are others than before."""
        del refresh  # a token that was refused, as of another scope, is of no use
        challenge = original.headers.get("Www-Authenticate", "")
        credentials = find_credentials(self._reference.host)
        if challenge.lower().startswith("basic"):
            self._require_https(str(original.request.url))
            answer = None if credentials is None else f"Basic {get_basic_auth(*credentials)}"
        else:
            answer = self._bearer(parse_auth_header(challenge), credentials)
        if answer is None or headers.get("Authorization") == answer:
            return headers, False
        self._shown = {"Authorization": answer}
        return {**headers, **self._shown}, True

    def _bearer(self, challenge: Any, credentials: tuple[str, str] | None) -> str | None:
        if not challenge.realm:
            raise ValueError("a challenge without a realm")
        if credentials is None:
            token = self.request_anonymous_token(challenge)
        else:
            self._require_https(challenge.realm)
            self.set_basic_auth(*credentials)
            token = self.request_token(challenge)
        return f"Bearer {token}" if token else None

    def _require_https(self, url: str) -> None:
        if urlsplit(url).scheme != "https":
            host = self._reference.host
            raise RegistryError(f"{host} wants a password, which plain http shows to everybody: use https")


class _Session(requests.Session):
    """A session that sends a registry only what the request has: no login of ~/.netrc, no cookies.

    Proxies and certificates of the environment apply. Answers that are not streamed are read up to _MAX_ANSWER_BYTES.
    """

    def __init__(self) -> None:
        super().__init__()
        self.auth = lambda request: request  # without an auth, requests looks into ~/.netrc
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """The answer to a request. Raises ValueError if it is too large for one that is not streamed."""
        response = super().request(*args, **{**kwargs, "stream": True, "timeout": _TIMEOUT})
        if not kwargs.get("stream"):
            with response:
                data = first_bytes(response, _MAX_ANSWER_BYTES + 1)
            if len(data) > _MAX_ANSWER_BYTES:
                raise ValueError(f"an answer of more than {_MAX_ANSWER_BYTES:,} bytes")
            response._content = data  # requests would store it there without a bound
        return response

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Remove a registry's login from a request that follows a redirect to another host."""
        if self.should_strip_auth(str(response.request.url), str(prepared_request.url)):
            prepared_request.headers.pop("Authorization", None)
