"""Finds user names and passwords of registries that ``docker login`` or ``podman login --compat-auth-file`` stored.

``$DOCKER_CONFIG/config.json``, or ``~/.docker/config.json``, holds passwords, or names a program that does:
https://docs.docker.com/reference/cli/docker/login/#credential-stores
"""

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import RegistryError

_DOCKER_HUB = "https://index.docker.io/v1/"
_OAUTH_USER = "<token>"


def find_credentials(host: str) -> tuple[str, str] | None:
    """The user name and the password for a registry; None without a login. Raises RegistryError."""
    path = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    try:
        config = json.loads(path.read_bytes())
        key = _DOCKER_HUB if host == "docker.io" else host
        helper = config.get("credHelpers", {}).get(key) or config.get("credsStore")
        return (_ask(helper, key) if helper else None) or _stored(config.get("auths", {}).get(key, {}), host)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RegistryError(f"cannot read {path}: {error.strerror}: check its permissions") from error
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise RegistryError(f"{path} is no configuration of docker ({error}): run `docker login {host}`") from error


def _stored(entry: dict[str, Any], host: str) -> tuple[str, str] | None:
    """The login in an entry of ``auths``. Raises ValueError, TypeError."""
    if entry.get("identitytoken"):
        raise _no_oauth(host)
    if not entry.get("auth"):
        return None
    user, colon, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
    if not colon:
        raise ValueError(f"auth of {host} has no colon")
    return user, password


def _ask(helper: str, key: str) -> tuple[str, str] | None:
    """The login of docker's credential helper for ``key``: https://github.com/docker/docker-credential-helpers."""
    command = [f"docker-credential-{helper}", "get"]
    try:
        found = subprocess.run(command, input=key, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        problem = f"{command[0]}, which docker's configuration names, is not on the PATH"
        raise RegistryError(f"{problem}: install it") from error
    if found.returncode != 0:
        if "credentials not found" in found.stdout + found.stderr:
            return None
        message = one_line((found.stdout + found.stderr).strip())
        raise RegistryError(f"{command[0]} failed ({message}): run `docker login` again")
    answer = json.loads(found.stdout)
    if answer["Username"] == _OAUTH_USER:
        raise _no_oauth(key)
    return answer["Username"], answer["Secret"]


def _no_oauth(host: str) -> RegistryError:
    return RegistryError(
        f"docker is logged in to {host} with an identity token, which is not supported: log in with a user name and a "
        "password or access token"
    )
