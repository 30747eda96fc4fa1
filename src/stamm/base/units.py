"""Parse and format quantities: 1.3M tokens, 4.2 GiB, 3 min 05 s."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from stamm.base.errors import ConfigError

_COUNT_SUFFIX = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_COUNT = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:[eE][0-9]{1,2})?)\s*([kKmMbBgGtT]?)")
_LONGEST = 64  # characters; the limit below needs 20 digits
_ROUNDS_UP = 0.9995  # rounded to three digits, values from here on are 1


def parse_count(text: str) -> int:
    """A whole number below 2^64 from "4096", "1_000", "1.5M", "2e6" or "15T".

    Raises   ConfigError when it is none of these, not whole, or larger.
    """
    match = _COUNT.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match:
        digits, suffix = match.groups()
        # A fraction is exact where a float is not: 1.001 times 1000 must be whole.
        value = Fraction(digits.replace("_", "")) * _COUNT_SUFFIX[suffix.lower()]
        if value.denominator == 1 and value < 2**64:
            return int(value)
    raise ConfigError(
        f"{text[:_LONGEST]!r} is not a whole number below 2^64", fix="Write 4096, 1.5M or 2e6"
    )


def count_text(value: float) -> str:
    """1234567 as "1.23M": three significant digits and a suffix."""
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor * _ROUNDS_UP:
            return f"{_three_digits(value / factor)}{suffix}"
    return f"{value:.4g}" if isinstance(value, float) and not value.is_integer() else f"{value:.0f}"


def bytes_text(value: float) -> str:
    """A size in binary units: 4.2 GiB."""
    for power, unit in ((5, "PiB"), (4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1024**power * _ROUNDS_UP:
            return f"{_three_digits(value / 1024**power)} {unit}"
    return f"{value:.0f} B"


def _three_digits(value: float) -> str:
    """Three significant digits, or all digits before the point where there are more; no exponent."""
    return f"{value:.3g}" if abs(value) < 1000 * _ROUNDS_UP else f"{value:.0f}"


def seconds_text(value: float) -> str:
    """A duration in the two units that matter: "3 min 05 s", "2 d 4 h"."""
    if not math.isfinite(value):
        return "unknown"
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def flops_text(value: float) -> str:
    """Floating-point operations: 6.74e24 as "6.74 YFLOP"."""
    for power, prefix in zip(range(8, 0, -1), "YZEPTGMk", strict=True):
        if abs(value) >= 1000.0**power * _ROUNDS_UP:
            return f"{_three_digits(value / 1000.0**power)} {prefix}FLOP"
    return f"{value:.3g} FLOP"
