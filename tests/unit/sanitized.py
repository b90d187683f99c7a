"""C++ under the sanitizers: product sources are compiled once for each variant, and tests link the parts that they use.

Object files and programs are kept in pytest's cache, each under a digest of all that it is made of, so that parallel
and later processes of pytest reuse them. The compiler optimizes by -Og, which takes as long as -O0 and makes tests run
in a third of the time; -O1 would take longer than it saves. The sources of a part are compiled together, as reading
their headers takes most of the time, so names must be unique in a part, also those of anonymous namespaces.
"""

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from tests.kept import kept

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CSRC = ROOT / "trtllm_lite" / "csrc"
VARIANTS = {
    "asan": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "tsan": ("-fsanitize=thread",),
}
COMMON_FLAGS = (
    *("-std=c++20", "-Wall", "-Wextra", "-pthread", "-DTL_ISA=portable"),
    *("-Og", "-g1", "-fno-omit-frame-pointer"),
)

KERNELS = sorted(ROOT.glob("plugins/*/cpu.cc"))
_PROCESS = (CSRC / "host" / "cpu_count.cc", CSRC / "host" / "niceness.cc")
_THREADS = CSRC / "host" / "thread_pool.cc"
_LIBRARIES = CSRC / "host" / "shared_library.cc"
_RANK_FILES = CSRC / "ranks" / "check_ranks.cc"  # reads engines
_OF_ENGINES = {  # parts of caches and drafts that read engines
    *(CSRC / "caches" / "cached_inputs.cc", CSRC / "caches" / "kv_cache_size.cc"),
    CSRC / "drafts" / "draft_model.cc",
}
_BATCHING = ("caches", "drafts", "schedule")
# Sources by part; paths of generated ones are relative.
PARTS: dict[str, Sequence[Path]] = {
    **{name: sorted((CSRC / name).rglob("*.cc")) for name in ("sampling", "text", "cpu", "media")},
    "batching": sorted({*(path for name in _BATCHING for path in (CSRC / name).rglob("*.cc"))} - _OF_ENGINES),
    "process": _PROCESS,
    "ranks": sorted({*(CSRC / "ranks").glob("*.cc")} - {_RANK_FILES}),
    "engine": [*sorted((CSRC / "engine").rglob("*.cc")), Path("op_schemas.cc"), Path("records.cc")],
    "threads": [_THREADS],
    "host": sorted({*(CSRC / "host").glob("*.cc")} - {_THREADS, *_PROCESS, _LIBRARIES}),
    "executor": [*sorted({*(CSRC / "executor").glob("*.cc")} | _OF_ENGINES), _LIBRARIES, Path("kernel_table.cc")],
    "rank-files": [_RANK_FILES],
    "kernels": KERNELS,
}
# The files that the generated C++ depends on.
_GENERATORS = (
    *(
        CSRC / "generate_records.py",
        CSRC.parent / "common" / "vocabulary.py",
        *sorted((CSRC.parent / "engine").glob("*.py")),
    ),
    *sorted((CSRC.parent / "request_fields").glob("*.py")),
    *sorted([*(ROOT / "plugins").glob("*.py"), *(ROOT / "plugins").glob("*/schema.toml")]),
)


class Sanitized:
    """Programs of tests, compiled into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def program(self, variant: str, name: str, sources: Sequence[Path], parts: Sequence[str]) -> Path:
        """The program ``name`` of a test's ``sources`` and of ``parts`` of the product."""
        jobs = [*((part, PARTS[part]) for part in parts), (f"test-{name}", sources)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda job: self._compile(variant, *job), jobs))
        command = [*compiler(VARIANTS[variant]), *objects, "-o"]
        contents = [str(path).encode() for path in objects]
        return self._kept(f"{variant}-program-{name}", contents, lambda target: _run([*command, target]))

    def run(self, program: Path, *arguments: str | Path) -> None:
        """Run a program, which must end with 0 and without a report."""
        run = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300, check=False)
        assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
        assert not run.stderr

    def _compile(self, variant: str, name: str, sources: Sequence[Path]) -> Path:
        """The object file of sources that are compiled together."""
        generated = self._kept("generated", [], _generate)
        paths = [generated / source for source in sources]
        includes = [CSRC, HERE / "schedule", generated, ROOT / "plugins"]
        found = [*(f"-I{path}" for path in includes), f"-isystem{_json_headers()}"]
        command = compiler([*VARIANTS[variant], *found, "-c"])
        text = "".join(f'#include "{path}"\n' for path in paths)

        def compile_into(target: Path) -> None:
            together = target.with_suffix(".cc")
            together.write_text(text)
            _run([*command, together, "-o", target])
            together.unlink()

        contents = [" ".join(command).encode(), text.encode(), *(path.read_bytes() for path in paths)]
        return self._kept(f"{variant}-{name}", contents, compile_into)

    def _kept(self, name: str, contents: Iterable[bytes], make: Callable[[Path], None]) -> Path:
        """What ``make`` writes for these contents, headers and generators."""
        return kept(self.folder / name, [_digest_of_headers(), *contents], make)


def names_of_tests(source: Path) -> list[str]:
    """The names of a source's tests, each of which its program runs by that name."""
    return re.findall(r"^TEST\((\w+)\)", source.read_text(), re.MULTILINE)


@cache
def _digest_of_headers() -> bytes:
    """A digest of what any source may include or be generated from, and of this file."""
    headers = [*CSRC.rglob("*.h"), *HERE.rglob("*.h"), *ROOT.glob("plugins/*/*.h")]
    digest = hashlib.sha256()
    for path in sorted([*headers, *_GENERATORS, Path(__file__)]):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()


def _generate(folder: Path) -> None:
    """Write the C++ that follows from schemas and records."""
    kernels = [path.parent.name for path in KERNELS]
    generator = ROOT / "plugins" / "generate_cpp.py"
    _run([sys.executable, generator, folder, "--isas", "portable", "--kernels", *kernels])
    _run([sys.executable, CSRC / "generate_records.py", folder])


def _json_headers() -> Path:
    package = importlib.util.find_spec("nlohmann_json")
    assert package is not None
    assert package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "include"


def compiler(flags: Sequence[str]) -> list[str]:
    """The command line of the C++ compiler, up to the files."""
    return [os.environ.get("CXX", "g++"), *COMMON_FLAGS, *flags]


def _run(command: Sequence[str | Path]) -> None:
    subprocess.run(command, check=True)
