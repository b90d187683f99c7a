"""The one family of exceptions that users see.

Every message says what was expected, what was found, and what the user can do about it.
The C++ extension raises the same classes (see ``csrc/bindings``). A message quotes a value that came from outside with
:func:`shown`, and repeats text of somebody else's making, such as another library's message, with
:func:`trtllm_lite.common.printable.one_line`.
"""

import reprlib


class TrtllmLiteError(Exception):
    """Base of every error this package raises on purpose; the CLI prints it without a traceback."""


class ConvertError(TrtllmLiteError):
    """A source checkpoint that cannot be mapped: unknown architecture, missing or unused tensors, wrong shapes."""


class BuildError(TrtllmLiteError):
    """A network that cannot be compiled, or build limits that contradict each other or the model."""


class EngineError(TrtllmLiteError):
    """An engine (or checkpoint) that is absent, truncated, corrupted, hostile, or of another version."""


class DeviceError(TrtllmLiteError):
    """A GPU, or a library that drives it, that is absent, unsuitable for the engine, or failed."""


class ArgumentError(TrtllmLiteError):
    """An argument that does not exist, is not supported, or has a value outside its domain."""


class LimitError(TrtllmLiteError):
    """A request beyond a limit: the message names the limit, the value, and the remedy."""


class OverloadedError(TrtllmLiteError):
    """Too many requests are outstanding. The refused request is valid, and may be sent again when others have ended."""


class RegistryError(TrtllmLiteError):
    """A registry that cannot be reached, refuses a request, or lacks the requested artifact."""


class ServerError(TrtllmLiteError):
    """A server that cannot be reached, refuses a request, or violates its protocol.

    ``kind`` is the same for errors that are counted together.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class OutputError(TrtllmLiteError):
    """An output path that cannot be written: unwritable, full, or holding files that are not ours."""


def shown(value: object) -> str:
    """``value`` as a message quotes it: its repr of at most 500 characters, from which the middle of long parts is cut.

    Control characters are escaped. Never raises.
    """
    return _QUOTES.repr(value)


class _Quotes(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to write an int of more than 4300 digits."""
        if x.bit_length() > 1 << 10:
            return f"<a whole number of {x.bit_length()} bits>"
        return super().repr_int(x, level)


_QUOTES = _Quotes()
_QUOTES.maxstring = _QUOTES.maxother = 80
_QUOTES.maxdict = _QUOTES.maxlist = _QUOTES.maxtuple = _QUOTES.maxset = 5
_QUOTES.maxlevel = 2
