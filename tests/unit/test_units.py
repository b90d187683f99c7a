"""Numbers of bytes, to and from text."""

import pytest

from trtllm_lite.common.units import counted, format_bytes, parse_bytes, short


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        *((0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")),
        *((-1536, "-1.5 KiB"), ((1 << 30) - 1, "1.0 GiB"), (16_061_055_232, "15.0 GiB")),
        *((9_457_372_900_000, "8.6 TiB"), (1e20, "88,817.8 PiB")),
    ],
)
def test_bytes_for_people(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


NAMED = {"0": 0, "1073741824": 1 << 30, "1.5GiB": 3 << 29, " 512 mib ": 1 << 29, "7B": 7, "80 GB": 80 * 10**9}


@pytest.mark.parametrize(("text", "num_bytes"), NAMED.items())
def test_bytes_from_text(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "many", "-1", "nan", "inf", "1 G", "1e30", "GiB"])
def test_other_text_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_bytes(text)


@pytest.mark.parametrize(("count", "text"), [(0, "0 tokens"), (1, "1 token"), (2, "2 tokens"), (1000, "1,000 tokens")])
def test_things_are_counted(count: int, text: str) -> None:
    assert counted(count, "token") == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        *((0, "s", "0 s"), (0.00025, "s", "250 µs"), (0.001, "s", "1 ms"), (1.5, "s", "1.5 s"), (1000, "", "1 k")),
        *(
            (1500, "tok/s", "1.5 k tok/s"),
            (2e11, "FLOPS", "200 GFLOPS"),
            (5e17, "B", "5e+05 TB"),
            (-0.002, "s", "-2 ms"),
        ),
    ],
)
def test_ticks_have_decimal_prefixes(value: float, unit: str, text: str) -> None:
    assert short(value, unit) == text
