"""Sends files to a registry and receives them, piece by piece, and turns errors into this package's.

The requests are those of the OCI distribution specification:
https://github.com/opencontainers/distribution-spec/blob/main/spec.md#endpoints
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urljoin

import requests
from oras.utils.request import append_url_params

from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import EngineError, RegistryError
from trtllm_lite.registry.artifact import MANIFEST_TYPE, MAX_MANIFEST_BYTES, Descriptor
from trtllm_lite.registry.reference import Reference
from trtllm_lite.registry.session import PIECE_BYTES, RepositoryClient, first_bytes, log_in_remedy

_MAX_PROBLEM_BYTES = 1 << 16
_BYTES = "application/octet-stream"


class Registry:
    """The repository of ``reference`` in its registry. All methods raise RegistryError."""

    def __init__(self, reference: Reference, plain_http: bool) -> None:
        self.reference = reference
        self._client = RepositoryClient(reference, insecure=plain_http or reference.is_local)

    def manifest(self) -> bytes:
        """The manifest that the reference selects. Raises EngineError if it is too large for a manifest."""
        url = self._client.url(f"manifests/{self.reference.selector}")
        with self._errors(), self._client.do_request(url, headers={"Accept": MANIFEST_TYPE}) as response:
            data = first_bytes(response, MAX_MANIFEST_BYTES + 1)
        if len(data) > MAX_MANIFEST_BYTES:
            raise EngineError(
                f"the manifest of {self.reference} is larger than the limit of {MAX_MANIFEST_BYTES:,} bytes: "
                "pass another reference"
            )
        return data

    def put_manifest(self, text: str) -> None:
        """Store the manifest ``text`` under the reference's tag."""
        url = self._client.url(f"manifests/{self.reference.tag}")
        with self._errors():
            self._put(url, text.encode(), MANIFEST_TYPE)

    def push(self, path: str, sent: Callable[[int], None]) -> str:
        """Send a file unless the registry has it; returns its digest. ``sent`` gets the size of each piece."""
        with open(path, "rb") as file:
            digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        with self._errors():
            if not self._has(digest):
                url = self._client.url("blobs/uploads/")
                with self._client.do_request(url, "POST", headers={"Content-Type": _BYTES}) as response:
                    place = urljoin(url, response.headers["Location"])
                with _Upload(path, sent) as upload:
                    self._put(append_url_params(place, {"digest": digest}), upload, _BYTES)
        return digest

    def _has(self, digest: str) -> bool:
        try:
            self._client.do_request(self._client.url(f"blobs/{digest}"), "HEAD").close()
        except requests.HTTPError as error:
            if error.response.status_code != requests.codes.not_found:
                raise
            error.response.close()
            return False
        return True

    def _put(self, url: str, data: "bytes | _Upload", content_type: str) -> None:
        """Store ``data`` at ``url``. Raises ValueError unless the answer has status 201 (created)."""
        with self._client.do_request(url, "PUT", data=data, headers={"Content-Type": content_type}) as response:
            if response.status_code != requests.codes.created:
                raise ValueError(f"expected status 201 (created), found {response.status_code}")

    def pull(self, blob: Descriptor) -> Iterator[bytes]:
        """Yield a blob in pieces. Raises EngineError, at the latest after the last one, if it differs from ``blob``."""
        with self._errors(), self._client.do_request(self._client.url(f"blobs/{blob.digest}")) as response:
            num_bytes, found = 0, hashlib.sha256()
            for piece in response.iter_content(PIECE_BYTES):
                num_bytes += len(piece)
                if num_bytes > blob.size:
                    break
                found.update(piece)
                yield piece
        if num_bytes != blob.size:
            more = "more" if num_bytes > blob.size else f"{num_bytes:,}"
            raise EngineError(f"{self._named(blob)} has {more} bytes, expected {blob.size:,}: push the engine again")
        if blob.digest != f"sha256:{found.hexdigest()}":
            raise EngineError(
                f"{self.reference.host} sent something else as {self._named(blob)} (expected {blob.digest}, found "
                f"sha256:{found.hexdigest()}): do not trust it"
            )

    def _named(self, blob: Descriptor) -> str:
        return f"{blob.title} of {self.reference}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the libraries into this package's."""
        host = self.reference.host
        try:
            yield
        except requests.HTTPError as error:
            with error.response:
                raise RegistryError(self._refusal(error.response)) from error
        except requests.exceptions.SSLError as error:
            raise RegistryError(
                f"cannot reach {host} by https ({one_line(str(error))}): check the name, trust its certificate "
                "(REQUESTS_CA_BUNDLE), or pass --plain_http if the registry has no https"
            ) from error
        except requests.RequestException as error:
            raise RegistryError(f"cannot reach {host} ({one_line(str(error))}): check the name, try again") from error
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            strange = f"{type(error).__name__}: {one_line(str(error))}"
            raise RegistryError(f"{host} does not answer as a registry does ({strange}): check the name") from error

    def _refusal(self, response: requests.Response) -> str:
        remedies = {404: "check the reference", 403: log_in_remedy(self.reference)}
        remedy = remedies.get(response.status_code, "try again, or ask its operators")
        return f"{self.reference.host} refuses {self.reference} ({_problem(response)}): {remedy}"


class _Upload(io.FileIO):
    """A file whose pieces are counted by ``sent`` as they are read."""

    def __init__(self, path: str, sent: Callable[[int], None]) -> None:
        super().__init__(path)
        self._sent = sent

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes; at most ``size`` of them if it is a number above 0."""
        piece = super().read(size) or b""
        self._sent(len(piece))
        return piece

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to another place; pieces that will be read again are subtracted from the count."""
        before = self.tell()
        after = super().seek(offset, whence)
        self._sent(after - before)
        return after

    def __len__(self) -> int:
        return os.fstat(self.fileno()).st_size


def _problem(response: requests.Response) -> str:
    """The status of an error, and the message with which registries explain it, if there is one."""
    status = f"{response.status_code} {one_line(str(response.reason))}"
    try:
        error = json.loads(next(response.iter_content(_MAX_PROBLEM_BYTES)))["errors"][0]
        return f"{status}, {one_line(str(error['message']))}"
    except (StopIteration, requests.RequestException, ValueError, LookupError, TypeError, RecursionError):
        return status
