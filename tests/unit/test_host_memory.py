"""How much memory may be taken: the least that the machine and the control groups leave."""

from pathlib import Path

import pytest

from trtllm_lite.common.host_memory import available_host_memory

MIB = 1 << 20
NAMES = {
    "2": ("memory.max", "memory.current", "inactive_file"),
    "1": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def write_group(folder: Path, version: str, limit: int | str, usage: int, inactive: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    limit_name, usage_name, reclaimable = NAMES[version]
    (folder / limit_name).write_text(f"{limit}\n")
    (folder / usage_name).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"cache 5\n{reclaimable} {inactive}\n")


def available(tmp_path: Path, own: str) -> int:
    own_groups = tmp_path / "own"
    own_groups.write_text(own)
    return available_host_memory(tmp_path / "cgroup", own_groups)


@pytest.mark.parametrize("version", NAMES)
@pytest.mark.parametrize("limited", ["own", "outer", "root"])
def test_the_least_room_of_all_groups_counts(tmp_path: Path, version: str, limited: str) -> None:
    root = tmp_path / "cgroup" / ("memory" if version == "1" else "")
    unlimited = "max" if version == "2" else (1 << 63) - 4096
    for name, folder in {"root": root, "outer": root / "pods", "own": root / "pods" / "mine"}.items():
        write_group(folder, version, 50 * MIB if name == limited else unlimited, 30 * MIB, 10 * MIB)
    own = "0::/pods/mine\n" if version == "2" else "3:cpu:/\n4:memory:/pods/mine\n"
    assert available(tmp_path, own) == 30 * MIB


def test_a_container_may_see_its_own_group_alone(tmp_path: Path) -> None:
    write_group(tmp_path / "cgroup", "2", 8 * MIB, 9 * MIB, 0)
    assert available(tmp_path, "0::/kubepods.slice/pod7\n") == 0


@pytest.mark.parametrize("own", ["", "0::/\n", "4:memory:/\n"])
def test_without_limits_the_machine_counts(tmp_path: Path, own: str) -> None:
    assert available(tmp_path, own) > 8 * MIB
    assert available_host_memory(tmp_path, tmp_path / "missing") > 8 * MIB
