"""The memory of this machine."""

import os


def available_host_memory() -> int:
    """Bytes of host memory that can be taken without swapping."""
    try:
        with open("/proc/meminfo") as meminfo:
            entries = dict(line.split(":", 1) for line in meminfo)
        return int(entries["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
