"""Checks hosts and origins: which names the server answers to, and pages of which origins may use it (CORS).

A page of any site can have a browser ask a server on its user's machine. Without keys only the host name in the
request, and the origin of the page, tell such requests apart: see https://fetch.spec.whatwg.org/#http-cors-protocol
"""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from trtllm_lite.errors import shown
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.http.messages import TEXT, Request, Response

_ANY = "*"
_EXPOSED = "X-Request-Id, X-Ignored-Fields, X-Model-Version, Retry-After"
_MAX_AGE = "600"  # seconds for which browsers may cache the answer
_LONGEST_LIST = 1024  # characters of the list of headers that a page may ask for


@dataclass(frozen=True, kw_only=True)
class Origins:
    """The hosts and origins that the operator allows.

    - ``hosts``: names and addresses by which the server may be asked, beside those of this machine; None for all
    - ``origins``: the origins of pages that may use the server, such as ``https://chat.example``, or ``*``
    - ``takes_local_pages``: whether pages that come from this machine may use the server, too
    - ``refuses_others``: whether requests of other pages are refused; otherwise they are answered, but browsers keep
      the answers from the pages
    """

    hosts: Collection[str] | None = None
    origins: Collection[str] = ()
    takes_local_pages: bool = False
    refuses_others: bool = False

    def check(self, request: Request) -> None:
        """Raise ApiError 403 for a request with a host or an origin that is not allowed.

        Sets the headers by which browsers pass the answer to the page. An HTTP/1.0 request may name no host.
        """
        if self.hosts is not None and request.host:
            name = host_name(request.host)
            if name not in self.hosts and not is_loopback(name):
                raise ApiError(
                    403,
                    f"the request is for the host {shown(name)}, which this server does not answer for: start it with "
                    "--allowed_hosts, if the name is its own",
                    code="host_not_allowed",
                )
        origin = request.headers.get("origin")
        if origin is None:
            return
        if self._takes(origin):
            request.origin_headers.update(
                {
                    "Access-Control-Allow-Origin": _ANY if _ANY in self.origins else origin,
                    "Access-Control-Expose-Headers": _EXPOSED,
                    "Vary": "Origin",
                }
            )
        elif self.refuses_others and not _is_own(origin, request.host):
            raise _not_allowed(origin)

    def preflight(self, request: Request, methods: Collection[str]) -> Response | None:
        """The answer to a CORS preflight request, or None if the request is none.

        ``methods`` are those of the path. Raises ApiError 403.
        """
        origin = request.headers.get("origin")
        if request.method != "OPTIONS" or origin is None or "access-control-request-method" not in request.headers:
            return None
        if not self._takes(origin):
            raise _not_allowed(origin)
        headers = {"Access-Control-Allow-Methods": ", ".join(methods), "Access-Control-Max-Age": _MAX_AGE}
        asked = request.headers.get("access-control-request-headers", "")
        if 0 < len(asked) <= _LONGEST_LIST and all(" " <= character <= "~" for character in asked):
            headers["Access-Control-Allow-Headers"] = asked
        return Response(200, b"", TEXT, headers)

    def _takes(self, origin: str) -> bool:
        if _ANY in self.origins or origin in self.origins:
            return True
        return self.takes_local_pages and is_loopback(host_name(origin.partition("://")[2]))


@lru_cache(maxsize=64)  # names may be as long as heads
def is_loopback(host: str) -> bool:
    """Whether a name or an address stands for this machine alone."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=64)
def host_name(host: str) -> str:
    """The name or the address in ``NAME[:PORT]``, without the brackets of IPv6, in lower case."""
    text = host.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    name = text if text.count(":") > 1 else text.partition(":")[0]
    return name.removesuffix(".")


def _is_own(origin: str, host: str) -> bool:
    """Whether a page comes from the same server that it asks."""
    return bool(host) and origin.lower().partition("://")[2] == host.lower()


def _not_allowed(origin: str) -> ApiError:
    return ApiError(
        403,
        f"pages of {shown(origin)} may not use this server: start it with --allowed_origins, if they should",
        code="origin_not_allowed",
    )
