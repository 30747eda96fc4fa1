"""The header Retry-After, as servers write it and as none should."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from stamm.base.retry_after import retry_after_seconds

NOW = datetime(2024, 1, 1, tzinfo=UTC)
HUGE = b"9" * 20


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"", 0.0),
        (b"120", 120.0),
        (b"1.5", 1.5),
        (b"-3", 0.0),
        (b"soon", 0.0),
        (b"Mon, 01 Jan 2024 00:02:00 GMT", 120.0),
        (b"Mon, 01 Jan 2024 01:02:00 +0100", 120.0),
        (b"Sun, 31 Dec 2023 00:00:00 GMT", 0.0),
        (b"Mon, 01 Jan " + HUGE + b" 00:00:00 GMT", 0.0),
        (b"Mon, 01 Jan 2024 00:00:00 +" + HUGE, 0.0),
        (HUGE + b" Jan 2024 00:00:00 GMT", 0.0),
        (b"1 Jan 99999999999 00:00:00 GMT", 0.0),
    ],
)
def test_seconds_to_wait(value: bytes, seconds: float) -> None:
    assert retry_after_seconds(value, NOW) == seconds


def test_the_last_year_is_far_away() -> None:
    assert retry_after_seconds(b"Fri, 31 Dec 9999 23:59:59 -2359", NOW) > 2e11
