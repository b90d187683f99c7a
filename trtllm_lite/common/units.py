"""Writes numbers for people: bytes in binary units, and counts of things."""

import math

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


def short(value: float, unit: str) -> str:
    """``value`` with a decimal prefix and at most three digits, as on the ticks of a chart: 250 µs, 1.5 k tok/s."""
    if not value:
        return f"0 {unit}".strip()
    power = min(max(math.floor(math.log10(abs(value) * (1 + 1e-9)) / 3), -3), 4)
    prefix = ("n", "µ", "m", "", "k", "M", "G", "T")[power + 3]
    spaced = f"{prefix}{unit}" if unit.isalpha() or not prefix else f"{prefix} {unit}"
    return f"{value / 1000.0**power:.3g} {spaced}".strip()
