"""Makes directories for large temporary files, such as engines for calibration or comparison."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import gettempdir

from trtllm_lite.common.files import PRODUCER_PREFIX, writing
from trtllm_lite.common.temporaries import temporary_directory
from trtllm_lite.errors import OutputError


@contextmanager
def scratch_directory(kind: str) -> Iterator[Path]:
    """Yield an empty directory for large files among the system's temporary ones, which is removed at the end.

    Directories of the same ``kind`` that killed processes of this user left are removed first. Raises OutputError if
    there is no temporary directory; an OutputError of the body about the directory mentions that TMPDIR chooses the
    place.
    """
    place = Path(gettempdir()) / f"{PRODUCER_PREFIX}-{os.getuid()}-{kind}"
    remedy = "set TMPDIR to a directory with enough space for such files"
    with ExitStack() as stack:
        with writing(str(place.parent), remedy):
            directory = stack.enter_context(temporary_directory(place))
            directory.chmod(0o700)
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        try:
            yield directory
        except OutputError as error:
            if str(directory) not in str(error):
                raise
            raise OutputError(f"{error}; what lies there is temporary: {remedy}") from error
