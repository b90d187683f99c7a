"""Parses names of artifacts in registries: ``HOST[:PORT]/NAME[:TAG][@sha256:DIGEST]``.

The grammar of names and tags is that of the OCI distribution specification, "Pulling manifests":
https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests
"""

import re
from dataclasses import dataclass

from trtllm_lite.errors import ArgumentError, shown

_DEFAULT_TAG = "latest"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    r"(?P<host>localhost|(?=[^/]*[.:])(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?)"
    rf"/(?P<name>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_MAX_NAME = 255
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Reference:
    """An artifact ``name`` of the registry ``host`` (with its port, if any); a digest takes precedence over the tag.

    ``digest`` is ``sha256:`` and 64 hexadecimal digits.
    """

    host: str
    name: str
    tag: str
    digest: str | None

    @property
    def is_local(self) -> bool:
        """Whether the registry is on this machine, where registries speak plain http."""
        return re.sub(r":[0-9]+$", "", self.host) in _LOCAL

    @property
    def selector(self) -> str:
        """The digest if there is one, or else the tag."""
        return self.digest or self.tag

    def pinned(self, digest: str) -> str:
        """The name of exactly the artifact with this digest."""
        return f"{self.host}/{self.name}@{digest}"

    def __str__(self) -> str:
        return self.pinned(self.digest) if self.digest else f"{self.host}/{self.name}:{self.tag}"


def parse_reference(text: str) -> Reference:
    """The reference that ``text`` spells, with the tag ``latest`` if it has none. Raises ArgumentError."""
    match = _REFERENCE.fullmatch(text)
    if match is None or len(match["name"]) > _MAX_NAME:
        raise ArgumentError(
            f"expected a reference like registry.example.com/team/engine:1.0 (host, lower-case name, tag), or one that "
            f"ends in @sha256: and 64 hexadecimal digits, found {shown(text)}: correct it"
        )
    return Reference(match["host"], match["name"], match["tag"] or _DEFAULT_TAG, match["digest"])
