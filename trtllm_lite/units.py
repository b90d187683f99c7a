"""Writes numbers for people: bytes in binary units, and counts of things."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024


def format_bytes(num_bytes: float) -> str:
    """``num_bytes`` in the largest unit that keeps it at 1 or more, with one digit behind the point: 1.5 GiB."""
    scaled, unit = float(num_bytes), _UNITS[0]
    for larger in _UNITS[1:]:
        # A size that rounds to 1 GiB is not written as 1024.0 MiB.
        if abs(round(scaled, 1)) < _STEP:
            break
        scaled, unit = scaled / _STEP, larger
    return f"{scaled:,.0f} {unit}" if unit == _UNITS[0] else f"{scaled:,.1f} {unit}"


def counted(count: int, noun: str) -> str:
    """``count`` with ``noun`` in its number: 1 token, 2 tokens."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def parse_bytes(text: str) -> int:
    """The bytes that ``text`` names, such as 1073741824, 512 MiB or 1.5GiB. Raises ValueError for anything else."""
    number, unit = text.strip(), _UNITS[0]
    for name in reversed(_UNITS):
        if number.lower().endswith(name.lower()):
            number, unit = number[: -len(name)], name
            break
    num_bytes = float(number) * _STEP ** _UNITS.index(unit)
    if not 0 <= num_bytes < 2**63:
        raise ValueError(f"{text} is no number of bytes")
    return int(num_bytes)
