"""Turns errors of libraries that raise plain Exceptions into errors of this package."""

from types import TracebackType

from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import TrtllmLiteError


class LibraryErrors:
    """Inside ``with``, whatever the tokenizers library raises becomes ``kind``: "WHAT (the library's message): REMEDY".

    The library's panics are not even subclasses of Exception. Errors of this package pass unchanged.
    """

    def __init__(self, kind: type[TrtllmLiteError], what: str, remedy: str) -> None:
        self._kind = kind
        self._what = what
        self._remedy = remedy

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None or issubclass(kind, TrtllmLiteError):
            return
        if issubclass(kind, Exception) or kind.__name__ == "PanicException":
            raise self._kind(f"{self._what} ({one_line(str(error))}): {self._remedy}") from error
