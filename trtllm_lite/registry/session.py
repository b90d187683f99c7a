"""Sends requests to one repository of a registry, by the package ``oras``, with the login that the registry asks for.

The package knows how tokens are fetched:
https://distribution.github.io/distribution/spec/auth/token/. Here logins are kept from plain http and from other hosts,
and no more of an answer is read than is needed.
"""

from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from urllib.request import parse_http_list

import requests
from oras.auth.token import TokenAuth
from oras.auth.utils import authHeader, get_basic_auth
from oras.provider import Registry as OrasRegistry

from trtllm_lite.errors import RegistryError
from trtllm_lite.registry.credentials import find_credentials
from trtllm_lite.registry.reference import Reference

_HUB, _HOST_OF_HUB = "docker.io", "registry-1.docker.io"
_TIMEOUT = 300.0  # seconds without a byte; a registry may hash a large blob before it answers
PIECE_BYTES = 1 << 20
"""Bytes of an answer that are read at a time."""
_MAX_ANSWER_BYTES = 1 << 20  # bound on answers that are not streamed; one with a token has some thousand bytes


class RepositoryClient(OrasRegistry):
    """The repository of ``reference``; ``insecure`` means plain http.

    Requests raise RegistryError if the registry wants another login, and what ``requests`` raises for other errors:
    HTTPError for a status above 399.
    """

    def __init__(self, reference: Reference, insecure: bool) -> None:
        is_hub = reference.host == _HUB
        host = _HOST_OF_HUB if is_hub else reference.host
        name = f"library/{reference.name}" if is_hub and "/" not in reference.name else reference.name
        super().__init__(host, insecure=insecure)
        self._reference = reference
        self.session = _Session()
        self.auth = _Login(reference)
        self.auth.session, self.auth.prefix, self.auth._tls_verify = self.session, self.prefix, True
        self._address = f"{self.prefix}://{host}/v2/{name}"

    def url(self, path: str) -> str:
        """The address of ``path`` in the repository, as in "manifests/latest"."""
        return f"{self._address}/{path}"

    def do_request(
        self,
        url: str,
        method: str = "GET",
        data: Any = None,
        headers: Any = None,
        json: Any = None,
        stream: bool = True,
    ) -> requests.Response:
        """The answer to a request, which is sent again with a login if the registry itself asks for one.

        ``data`` is bytes or a file, which is then read from its beginning again.
        """
        headers = dict(headers or {})
        if self._is_at_registry(url):
            headers |= self.auth.get_auth_header()
        response = self.session.request(method, url, data=data, json=json, headers=headers, stream=stream)
        if response.status_code == requests.codes.unauthorized and self._is_at_registry(response.url):
            with response:
                headers, changed = self.auth.authenticate_request(response, headers, refresh=True)
            if changed:
                if hasattr(data, "seek"):
                    data.seek(0)
                response = self.session.request(method, url, data=data, json=json, headers=headers, stream=stream)
            if response.status_code == requests.codes.unauthorized:
                host, name = self._reference.host, self._reference.name
                raise RegistryError(f"{host} wants another login for {name}: {log_in_remedy(self._reference)}")
        response.raise_for_status()
        return response

    def _is_at_registry(self, url: str) -> bool:
        """Whether a login may be shown at ``url``: it has the registry's host and port, and does not fall back from
        https to http."""
        return not self.session.should_strip_auth(self.url(""), url)


def log_in_remedy(reference: Reference) -> str:
    """The remedy for a user whose login does not suffice."""
    return f"run `docker login {reference.host}` with an account that may do this"


def first_bytes(response: requests.Response, count: int) -> bytes:
    """The first ``count`` bytes of a streamed answer, or all if there are fewer."""
    data = b""
    for piece in response.iter_content(PIECE_BYTES):
        data += piece
        if len(data) >= count:
            break
    return data[:count]


class _Login(TokenAuth):
    """Answers a registry's challenges by docker's login, and sends the answer with later requests."""

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
        """The headers with which a refused request may be allowed, and whether they differ from those before."""
        del refresh  # a token that was refused, for example because of its scope, is of no use
        challenges = _challenges(original.headers.get("Www-Authenticate", ""))
        credentials = find_credentials(self._reference.host)
        is_secret = urlsplit(str(original.request.url)).scheme == "https"
        if credentials is not None and challenges and not is_secret:
            host = self._reference.host
            raise RegistryError(f"{host} wants a password, which plain http shows to everybody: use https")
        if "bearer" in challenges:
            answer = self._bearer(challenges["bearer"], credentials, is_secret)
        else:
            answer = f"Basic {get_basic_auth(*credentials)}" if credentials and "basic" in challenges else None
        if answer is None or headers.get("Authorization") == answer:
            return headers, False
        self._shown = {"Authorization": answer}
        return {**headers, **self._shown}, True

    def _bearer(self, challenge: dict[str, str], credentials: tuple[str, str] | None, is_secret: bool) -> str | None:
        realm = urlsplit(challenge["realm"])
        # A registry behind a proxy that terminates TLS may give an http address.
        realm = realm._replace(scheme="https") if is_secret else realm
        wanted = authHeader({**challenge, "realm": urlunsplit(realm)})
        if credentials is None:
            token = self.request_anonymous_token(wanted)
        else:
            self.set_basic_auth(*credentials)
            token = self.request_token(wanted)
        return f"Bearer {token}" if token else None


def _challenges(header: str) -> dict[str, dict[str, str]]:
    """The parameters of each scheme in a WWW-Authenticate header, all names in lower case: RFC 9110, section 11.6.1."""
    found: dict[str, dict[str, str]] = {}
    parameters: dict[str, str] = {}
    for item in parse_http_list(header):
        scheme, _, rest = item.partition(" ")
        if "=" not in scheme:
            parameters, item = found.setdefault(scheme.lower(), {}), rest
        name, equals, value = item.partition("=")
        if equals:
            parameters[name.strip().lower()] = value.strip().strip('"')
    return found


class _Session(requests.Session):
    """A session that adds nothing to requests: no login of ~/.netrc, no cookies.

    Proxies and certificates of the environment apply. Answers that are not streamed, those with tokens, are read up to
    _MAX_ANSWER_BYTES.
    """

    def __init__(self) -> None:
        super().__init__()
        self.auth = lambda request: request  # without an auth, requests looks into ~/.netrc
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """The answer to a request.

        For a request that is not streamed this raises ValueError if the answer is too large, and HTTPError for a status
        other than success and a refused login.
        """
        response = super().request(*args, **{**kwargs, "stream": True, "timeout": _TIMEOUT})
        if not kwargs.get("stream"):
            with response:
                data = first_bytes(response, _MAX_ANSWER_BYTES + 1)
            if len(data) > _MAX_ANSWER_BYTES:
                raise ValueError(f"an answer of more than {_MAX_ANSWER_BYTES:,} bytes")
            response._content = data  # requests would store it there without a bound
            if response.status_code not in (requests.codes.unauthorized, requests.codes.forbidden):
                response.raise_for_status()
        return response

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Remove a registry's login from a request that follows a redirect to another host."""
        if self.should_strip_auth(str(response.request.url), str(prepared_request.url)):
            prepared_request.headers.pop("Authorization", None)
