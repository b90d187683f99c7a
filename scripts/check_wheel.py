"""Checks wheels against their limits: ``check_wheel.py WHEEL…``.

A wheel has at most MAX_BYTES, and metadata of at most MAX_METADATA_BYTES. It is for MANYLINUX, and for all Pythons from
3.12 on or for 3.11; it contains the timing caches of ``configs/timing_caches``, the headers that kernels of other
packages include, and no other C++ sources or tests.
"""

import re
import sys
import zipfile
from pathlib import Path

MAX_BYTES = 4_000_000
MAX_METADATA_BYTES = 20_000
MANYLINUX = "manylinux_2_28"
TAGS = re.compile(rf"-(?:cp312-abi3|cp311-cp311)-(?:\w+\.)*{MANYLINUX}_(?:x86_64|aarch64)(?:\.\w+)*\.whl$")
NEEDED = {
    "the extension trtllm_lite._core": re.compile(r"trtllm_lite/_core\.[\w-]+\.so$"),
    "the headers for kernels of other packages": re.compile(r"trtllm_lite/include/cpu/plugin_library\.h$"),
}
UNWANTED = re.compile(r"\.cc$|^(?!trtllm_lite/include/).*\.h$|/_testing\.")
TIMING_CACHES = Path(__file__).parents[1] / "configs" / "timing_caches"


def problems(wheel: Path) -> list[str]:
    """A sentence for each defect of a wheel."""
    found = []
    if not TAGS.search(wheel.name):
        found.append(f"its tags are not cp312-abi3 or cp311-cp311 for {MANYLINUX} of x86_64 or aarch64")
    if (size := wheel.stat().st_size) > MAX_BYTES:
        found.append(f"it has {size:,} bytes, expected at most {MAX_BYTES:,}: leave out what no user needs")
    with zipfile.ZipFile(wheel) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    (metadata,) = (size for name, size in sizes.items() if name.endswith(".dist-info/METADATA"))
    if metadata > MAX_METADATA_BYTES:
        found.append(
            f"it has {metadata:,} bytes of metadata, expected at most {MAX_METADATA_BYTES:,}: shorten README.md"
        )
    found += [f"it lacks {what}" for what, pattern in NEEDED.items() if not any(map(pattern.match, sizes))]
    caches = {f"trtllm_lite/timing_caches/{path.name}" for path in TIMING_CACHES.glob("*.json")}
    found += [f"it lacks {name}" for name in sorted(caches - sizes.keys())]
    found += [f"it holds {name}, which no user needs" for name in sizes if UNWANTED.search(name)]
    return found


def main() -> None:
    wheels = [Path(argument) for argument in sys.argv[1:]]
    if not wheels:
        sys.exit("usage: python scripts/check_wheel.py WHEEL…")
    wrong = {wheel: found for wheel in wheels if (found := problems(wheel))}
    for wheel in wheels:
        print(f"{wheel.name}: {'; '.join(wrong.get(wheel, ['good']))} ({wheel.stat().st_size:,} bytes)")
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
