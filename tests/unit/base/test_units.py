"""Numbers as people write and read them."""

from __future__ import annotations

import pytest

from stamm.base.errors import ConfigError
from stamm.base.units import bytes_text, count_text, flops_text, parse_count, seconds_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("1_000", 1000),
        ("1.5M", 1_500_000),
        ("2e6", 2_000_000),
        ("15T", 15 * 10**12),
        ("1.001k", 1001),
        ("4.35M", 4_350_000),
        ("18446744073709551615", 2**64 - 1),
    ],
)
def test_counts_are_read(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "1.5", "1e-3", "-4", "1..2",
        "1_", "_1", "1__0", "²", "٣",
        "1.0000000000000000000000000000000000001",
        "18446744073709551616", "1e99T", "1e999999999", "9" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a whole number"):
        parse_count(text)


def test_large_whole_numbers_are_exact() -> None:
    assert parse_count("2971215073000000001") == 2971215073000000001


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (count_text(1_234_567), "1.23M"),
        (count_text(999_900), "1M"),
        (count_text(12), "12"),
        (count_text(2.5e15), "2500T"),
        (bytes_text(1023), "1023 B"),
        (bytes_text(1536), "1.5 KiB"),
        (bytes_text(1000 * 2**30), "1000 GiB"),
        (bytes_text(1023.4 * 2**30), "1023 GiB"),
        (bytes_text(1023.9 * 2**30), "1 TiB"),
        (bytes_text(5000 * 2**50), "5000 PiB"),
        (seconds_text(3.21), "3.2 s"),
        (seconds_text(185), "3 min 05 s"),
        (seconds_text(7260), "2 h 01 min"),
        (seconds_text(float("inf")), "unknown"),
        (flops_text(0), "0 FLOP"),
        (flops_text(999_400), "999 kFLOP"),
        (flops_text(999_950), "1 MFLOP"),
        (flops_text(6.74e24), "6.74 YFLOP"),
        (flops_text(6.74e27), "6740 YFLOP"),
    ],
)
def test_quantities_are_written(shown: str, expected: str) -> None:
    assert shown == expected
