"""Describes the machine of a measurement, its memory bandwidth, and this process's peak memory."""

import json
import os
import platform
import subprocess
import sys
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_lite import __version__
from trtllm_lite.errors import DeviceError
from trtllm_lite.runtime.core import core

_PROBE_PASSES = 8


def describe(target: str) -> dict[str, Any]:
    """The entries of a report about the origin of its figures: commit, date, versions, machine.

    ``target`` is the kind of device that the engine is for; a GPU is named. Raises DeviceError if a GPU is needed and
    missing.
    """
    described: dict[str, Any] = {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {"trtllm_lite": __version__, "python": platform.python_version(), "numpy": np.__version__},
        "machine": {"cpu": _cpu_name(), "cores": num_cores(), "system": platform.platform()},
    }
    if target != "cpu":
        described["machine"]["gpu"], described["versions"]["driver"] = _gpu()
    return described


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def busy_cores() -> float:
    """The number of cores that were busy over the last minute. Other work makes measured speeds too low."""
    return os.getloadavg()[0]


def read_bandwidth(num_threads: int, num_bytes: int) -> float:
    """The rate, in bytes per second, at which ``num_threads`` threads together read the same ``num_bytes`` repeatedly.

    The result is the best of several passes with several access patterns. The machine's caches may hold part of the
    bytes, just as they may hold part of the weights that every step reads: the floor of a step needs the rate for as
    many bytes as the step reads.
    """
    return float(core().best_read_rate(num_bytes, num_threads, _PROBE_PASSES))


def reset_peak_memory() -> None:
    """Forget the peak so far, so that :func:`peak_memory` counts from what is resident now (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Bytes of the process's largest resident set since :func:`reset_peak_memory`, interpreter included (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


def commit() -> str | None:
    """The commit of this package, with -dirty for local changes; None if it is unknown.

    It is the commit of the checkout that the package runs from, or the one that pip installed.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # site-packages may be inside a checkout of another project
        return _installed_commit()
    try:
        found = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def _installed_commit() -> str | None:
    """The commit that pip recorded: https://packaging.python.org/en/latest/specifications/direct-url/."""
    try:
        origin = json.loads(distribution("trtllm_lite").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    found = origin.get("vcs_info", {}).get("commit_id")
    return None if found is None else str(found)


@cache
def _gpu() -> tuple[str, str]:
    """The name and driver version of the GPU that engines run on, as selected by CUDA_VISIBLE_DEVICES.

    A child process queries the driver: if this process initialised it now, the start-up measured later would be too
    short.
    """
    command = [sys.executable, "-P", "-m", __spec__.name]  # -P keeps modules of the working directory out
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        said = asked.stderr.strip().rpartition("\n")[2]
        raise DeviceError(said or f"the CUDA driver ended its process ({asked.returncode}): repair it")
    device = json.loads(asked.stdout)
    return device["name"], _driver_version() or f"CUDA {device['cuda_version']}"


def _driver_version() -> str | None:
    """The version of the NVIDIA driver, which is the same for all GPUs; None where nvidia-smi is not installed."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.partition("\n")[0].strip() or None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    try:
        print(json.dumps(core().cuda_device()))
    except DeviceError as error:
        sys.exit(str(error))
