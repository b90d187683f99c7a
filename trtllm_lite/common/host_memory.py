"""Measures the free memory of this machine, or of the container that this process runs in."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_UNLIMITED = "max"
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def available_host_memory(groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """Bytes of host memory that can be allocated without swapping, and within the limits of control groups.

    ``groups`` is the directory in which Linux lists control groups, ``own_groups`` the list of this process's groups.
    """
    return min([_available_on_machine(), *_available_in_groups(groups, own_groups)])


def _available_on_machine() -> int:
    try:
        with open("/proc/meminfo") as meminfo:
            entries = dict(line.split(":", 1) for line in meminfo)
        return int(entries["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _available_in_groups(groups: Path, own_groups: Path) -> Iterator[int]:
    """Bytes that are left in each control group of this process, version 2 or 1."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _rooms(groups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _rooms(groups / "memory", path, *names)


def _rooms(root: Path, path: str, limit_name: str, usage_name: str, reclaimable: str) -> Iterator[int]:
    """The bytes that are left in a control group, and in each group that contains it.

    A container may see its own group at ``root`` while the kernel reports its place on the host: missing paths are
    skipped. Cached pages of files that were not used for a while count as free, as in MemAvailable, because the kernel
    drops them.
    """
    inner = PurePosixPath(path.lstrip("/"))
    for group in dict.fromkeys((inner, *inner.parents)):
        folder = root / group
        try:
            limit = (folder / limit_name).read_text().strip()
            if limit == _UNLIMITED:
                continue
            usage = int((folder / usage_name).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield max(int(limit) - usage + int(statistics[reclaimable]), 0)
        except (OSError, KeyError, ValueError):
            continue
