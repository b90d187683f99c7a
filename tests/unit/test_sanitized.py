"""Programs of tests are compiled once, even if several threads ask for them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from tests.kept import kept

NUM_THREADS, NUM_FOLDERS = 4, 100


def test_threads_that_meet_in_an_empty_cache_make_one_file(tmp_path: Path) -> None:
    barrier = Barrier(NUM_THREADS, timeout=60)
    made: list[Path] = []

    def ask(_: int) -> list[Path]:
        found = []
        for number in range(NUM_FOLDERS):
            barrier.wait()
            found.append(kept(tmp_path / "cache" / str(number), [b"source"], make))
        return found

    def make(target: Path) -> None:
        made.append(target)
        target.write_text("object")

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = list(pool.map(ask, range(NUM_THREADS)))
    assert len(made) == NUM_FOLDERS
    assert all(paths == found[0] for paths in found)
    assert {path.read_text() for path in found[0]} == {"object"}
