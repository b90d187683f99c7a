"""Results that all processes of tests share: each file or folder is kept under a digest of all that it depends on."""

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def kept(parent: Path, contents: Iterable[bytes], make: Callable[[Path], None]) -> Path:
    """The file or folder below ``parent`` that ``make`` writes for ``contents``; one for other contents is removed."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(hashlib.sha256(content).digest())
    parent.parent.mkdir(parents=True, exist_ok=True)
    made = parent / digest.hexdigest()[:16]
    with _alone(parent):  # the folder is touched only under the lock
        if not made.exists():
            if parent.exists():
                shutil.rmtree(parent)
            parent.mkdir()
            unfinished = parent / "unfinished"
            make(unfinished)
            unfinished.rename(made)
    return made


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process or thread at a time make what ``folder`` holds, while the others wait for it."""
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
