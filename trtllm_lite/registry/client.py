"""Sends requests to a registry by the package ``python-dxf``, and turns its errors into this package's.

It sends and receives blobs piece by piece, checks received bytes against their digest, and supports both kinds of
login.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import requests
from dxf import DXF, DXFBase
from dxf.exceptions import DXFAuthInsecureError, DXFDigestMismatchError, DXFError, DXFUnauthorizedError

from trtllm_lite.errors import EngineError, RegistryError
from trtllm_lite.printable import one_line
from trtllm_lite.registry.artifact import MANIFEST_TYPE, MAX_MANIFEST_BYTES, Descriptor
from trtllm_lite.registry.credentials import find_credentials
from trtllm_lite.registry.reference import Reference

_HUB = {"docker.io": "registry-1.docker.io"}
_TIMEOUT = 300.0  # seconds without a byte; a registry may hash a large blob before it answers
_PIECE = 1 << 20
_MAX_PROBLEM_BYTES = 1 << 16
_MAX_TOKEN_BYTES = 1 << 20  # of the answer with a token, which has some thousand bytes


class Registry:
    """The repository of ``reference`` in its registry. All methods raise RegistryError."""

    def __init__(self, reference: Reference, plain_http: bool) -> None:
        self.reference = reference
        host = _HUB.get(reference.host, reference.host)
        insecure = plain_http or reference.is_local
        self._client = _Client(host, reference.name, auth=self._log_in, insecure=insecure, timeout=_TIMEOUT)

    def manifest(self) -> bytes:
        """The manifest that the reference selects. Raises EngineError if it is too large for one."""
        with self._errors():
            data = self._client.manifest(self.reference.selector)
        if len(data) > MAX_MANIFEST_BYTES:
            raise EngineError(
                f"the manifest of {self.reference} is larger than one may be, {MAX_MANIFEST_BYTES:,} bytes: pass "
                "another reference"
            )
        return data

    def put_manifest(self, text: str) -> None:
        """Store the manifest ``text`` under the reference's tag."""
        with self._errors():
            self._client.set_manifest(self.reference.tag, text)

    def push(self, path: str, sent: Callable[[int], None]) -> str:
        """Send a file unless the registry has it; returns its digest. ``sent`` gets the size of each piece."""
        with self._errors():
            return str(self._client.push_blob(path, progress=lambda _digest, piece, _size: sent(len(piece))))

    def pull(self, blob: Descriptor) -> Iterator[bytes]:
        """Yield a blob in pieces. Raises EngineError, at the latest after the last one, if it differs from ``blob``."""
        with self._errors(blob):
            num_bytes = 0
            for piece in cast(Iterable[bytes], self._client.pull_blob(blob.digest, chunk_size=_PIECE)):
                num_bytes += len(piece)
                if num_bytes > blob.size:
                    break
                yield piece
        if num_bytes != blob.size:
            more = "more" if num_bytes > blob.size else f"{num_bytes:,}"
            raise EngineError(f"{self._named(blob)} has {more} bytes, expected {blob.size:,}: push the engine again")

    def _named(self, blob: Descriptor) -> str:
        return f"{blob.title} of {self.reference}"

    def _log_in(self, client: DXFBase, response: requests.Response) -> None:
        user, password = find_credentials(self.reference.host) or (None, None)
        client.authenticate(user, password, response=response)

    @contextmanager
    def _errors(self, blob: Descriptor | None = None) -> Iterator[None]:
        """Turn errors of the library into this package's; ``blob`` is being received."""
        host, name = self.reference.host, self.reference.name
        try:
            yield
        except DXFDigestMismatchError as error:
            what = "the manifest" if blob is None else self._named(blob)
            raise EngineError(f"{host} sent something else as {what} ({error}): do not trust it") from error
        except DXFUnauthorizedError as error:
            raise RegistryError(f"{host} wants another login for {name}: {self._log_in_remedy()}") from error
        except DXFAuthInsecureError as error:
            raise RegistryError(f"{host} wants a password, which plain http shows to everybody: use https") from error
        except requests.HTTPError as error:
            raise RegistryError(self._refusal(error.response)) from error
        except requests.exceptions.SSLError as error:
            raise RegistryError(
                f"cannot reach {host} by https ({one_line(str(error))}): check the name, trust its certificate "
                "(REQUESTS_CA_BUNDLE), or pass --plain_http if it speaks nothing else"
            ) from error
        except requests.RequestException as error:
            raise RegistryError(f"cannot reach {host} ({one_line(str(error))}): check the name, try again") from error
        except (DXFError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            strange = f"{type(error).__name__}: {one_line(str(error))}"
            raise RegistryError(f"{host} does not answer as a registry does ({strange}): check the name") from error

    def _refusal(self, response: requests.Response) -> str:
        remedies = {404: "check the reference", 403: self._log_in_remedy()}
        remedy = remedies.get(response.status_code, "try again, or ask its operators")
        return f"{self.reference.host} refuses {self.reference} ({_problem(response)}): {remedy}"

    def _log_in_remedy(self) -> str:
        return f"run `docker login {self.reference.host}` with an account that may do this"


class _Session(requests.Session):
    """A session that sends a registry only what the request has, and no login of ~/.netrc.

    Proxies and certificates of the environment apply. The answer with a token, which is not streamed, is read up to
    _MAX_TOKEN_BYTES.
    """

    def __init__(self) -> None:
        super().__init__()
        self.auth = lambda request: request  # without an auth, requests looks into ~/.netrc

    def get(self, url: str | bytes, **kwargs: Any) -> requests.Response:
        """The answer to a GET request. Raises ValueError if it is too large for one that is not streamed."""
        response = super().get(url, **{"stream": True, **kwargs})
        if not kwargs.get("stream"):
            with response:
                data = _first_bytes(response, _MAX_TOKEN_BYTES + 1)
            if len(data) > _MAX_TOKEN_BYTES:
                raise ValueError(f"a token of more than {_MAX_TOKEN_BYTES:,} bytes")
            response._content = data  # requests would store it there without a bound
        return response

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Remove a registry's login from a request that follows a redirect to another host."""
        if self.should_strip_auth(str(response.request.url), str(prepared_request.url)):
            prepared_request.headers.pop("Authorization", None)


class _Client(DXF):
    """A DXF client that reads no more of an answer than is needed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sessions = [_Session()]

    def _base_request(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        return super()._base_request(method, path, **{"stream": True, **kwargs})

    def manifest(self, selector: str) -> bytes:
        """The manifest of a tag or digest, or its first bytes if it is larger than MAX_MANIFEST_BYTES."""
        with self._request("get", f"manifests/{selector}", headers={"Accept": MANIFEST_TYPE}) as response:
            return _first_bytes(response, MAX_MANIFEST_BYTES + 1)


def _first_bytes(response: requests.Response, count: int) -> bytes:
    """The first ``count`` bytes of a streamed answer, or all if there are fewer."""
    data = b""
    for piece in response.iter_content(_PIECE):
        data += piece
        if len(data) >= count:
            break
    return data[:count]


def _problem(response: requests.Response) -> str:
    """The status of an error, and the message with which registries explain it, if there is one."""
    status = f"{response.status_code} {one_line(str(response.reason))}"
    try:
        error = json.loads(next(response.iter_content(_MAX_PROBLEM_BYTES)))["errors"][0]
        return f"{status}, {one_line(str(error['message']))}"
    except (StopIteration, requests.RequestException, ValueError, LookupError, TypeError, RecursionError):
        return status
