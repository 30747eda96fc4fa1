"""The Retry-After header of HTTP."""

from __future__ import annotations

import email.utils
import re
from datetime import UTC, datetime

_LONGEST = 64  # bytes


def retry_after_seconds(value: bytes, now: datetime) -> float:
    """Seconds to wait by a Retry-After header; 0 for a missing or invalid one.

    value   a number of seconds, or a date
    Edge    fractions of a second, which some servers send, are read too
    Source  RFC 9110, section 10.2.3
    """
    text = value[:_LONGEST].decode("ascii", "replace").strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    try:
        until = email.utils.parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # OverflowError: beyond C's integers
        return 0.0
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - now).total_seconds())
