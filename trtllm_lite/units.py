"""Writes numbers for people: bytes in binary units, and counts of things."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024
_FACTORS = {name: _STEP**power for power, name in reversed(list(enumerate(_UNITS)))}
_FACTORS = {**{f"{prefix}B": 1000 ** (power + 1) for power, prefix in enumerate("kMGTP")}, **_FACTORS}


def format_bytes(num_bytes: float) -> str:
    """``num_bytes`` in the largest unit that keeps it at 1 or more, with one digit after the point: 1.5 GiB."""
    scaled, unit = float(num_bytes), _UNITS[0]
    for larger in _UNITS[1:]:
        # A size that rounds to 1 GiB is not written as 1024.0 MiB.
        if abs(round(scaled, 1)) < _STEP:
            break
        scaled, unit = scaled / _STEP, larger
    return f"{scaled:,.0f} {unit}" if unit == _UNITS[0] else f"{scaled:,.1f} {unit}"


def counted(count: int, noun: str) -> str:
    """``count`` with ``noun`` in the singular or plural: 1 token, 2 tokens."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def parse_bytes(text: str) -> int:
    """The bytes that ``text`` names, such as 1073741824, 512 MiB or 80GB. Raises ValueError for anything else."""
    number, factor = text.strip(), 1
    for name, of_unit in _FACTORS.items():
        if number.lower().endswith(name.lower()):
            number, factor = number[: -len(name)], of_unit
            break
    num_bytes = float(number) * factor
    if not 0 <= num_bytes < 2**63:
        raise ValueError(f"{text} is no number of bytes")
    return int(num_bytes)
