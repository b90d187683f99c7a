"""Finds the extents that the header of an image's file states, without a library that decodes images.

A server refuses an image that is too large before it gives it to another process. What this cannot tell of a file, the
process that decodes it finds out, also before it decodes pixels.
"""

import struct

_MAX_SEGMENTS = 256  # of a JPEG file, which come before its extents
_START_OF_FRAME = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD9)}
_MAX_ENTRIES = 256  # of a TIFF file
_TIFF_TYPES = {3: "H", 4: "I"}
_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257


def stated_extents(content: bytes) -> tuple[int, int] | None:
    """The height and width that the header of a PNG, JPEG, WEBP, GIF, BMP or TIFF file states, in pixels.

    They are those of the stored image, which may have to be turned. None if the file is of another format, or damaged.
    Takes some microseconds, whatever the file holds.
    """
    try:
        for magic, read in _READERS.items():
            if content.startswith(magic):
                return read(content)
    except (struct.error, IndexError):
        pass
    return None


def _png(content: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", content, 16)
    return height, width


def _gif(content: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", content, 6)
    return height, width


def _bmp(content: bytes) -> tuple[int, int]:
    (header_size,) = struct.unpack_from("<I", content, 14)
    width, height = struct.unpack_from("<HH" if header_size == 12 else "<ii", content, 18)
    return abs(height), abs(width)  # rows from top to bottom have a negative height


def _webp(content: bytes) -> tuple[int, int] | None:
    match content[8:16]:
        case b"WEBPVP8X":
            return 1 + int.from_bytes(content[27:30], "little"), 1 + int.from_bytes(content[24:27], "little")
        case b"WEBPVP8L":
            (bits,) = struct.unpack_from("<I", content, 21)
            return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
        case b"WEBPVP8 ":
            width, height = struct.unpack_from("<HH", content, 26)
            return height & 0x3FFF, width & 0x3FFF
    return None


def _jpeg(content: bytes) -> tuple[int, int] | None:
    place = 2
    for _ in range(_MAX_SEGMENTS):
        if content[place] != 0xFF:
            return None
        marker = content[place + 1]
        if marker == 0xFF:  # bytes that fill up
            place += 1
            continue
        if marker in _START_OF_FRAME:
            height, width = struct.unpack_from(">HH", content, place + 5)
            return height, width
        place += 2
        if marker not in _WITHOUT_LENGTH:
            place += struct.unpack_from(">H", content, place)[0]
    return None


def _tiff(content: bytes) -> tuple[int, int] | None:
    order = "<" if content.startswith(b"II") else ">"
    (place,) = struct.unpack_from(f"{order}I", content, 4)
    (count,) = struct.unpack_from(f"{order}H", content, place)
    found = {}
    for entry in range(min(count, _MAX_ENTRIES)):
        tag, kind = struct.unpack_from(f"{order}HH", content, place + 2 + 12 * entry)
        if kind in _TIFF_TYPES:
            (found[tag],) = struct.unpack_from(order + _TIFF_TYPES[kind], content, place + 10 + 12 * entry)
    if _TIFF_WIDTH not in found or _TIFF_HEIGHT not in found:
        return None
    return found[_TIFF_HEIGHT], found[_TIFF_WIDTH]


_READERS = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"\xff\xd8": _jpeg,
    b"GIF8": _gif,
    b"BM": _bmp,
    b"RIFF": _webp,
    b"II*\x00": _tiff,
    b"MM\x00*": _tiff,
}
