"""A test of more than 2 CPU seconds is not part of `make test`, unless a reason keeps it there."""

from __future__ import annotations

import json
import re

from tools.test_times import CAP, SLOW_TESTS, exists

LISTED = json.loads(SLOW_TESTS.read_text())


def test_every_listed_test_exists() -> None:
    """A renamed test would come back among the fast ones. Run `python -m tools.test_times`."""
    gone = [test for test in [*LISTED["slow"], *LISTED["kept_fast"]] if not exists(test)]
    assert not gone, "rename these in tests/slow_tests.json too"


def test_slow_tests_that_stay_fast_have_a_reason_and_are_few() -> None:
    """What `make test` keeps beyond the cap takes at most 200 CPU seconds together."""
    kept, slow = LISTED["kept_fast"], LISTED["slow"]
    assert not [test for test, why in kept.items() if not re.search(r"\w+ \w+ \w+", why)]
    assert sum(slow.get(test, 0.0) for test in kept) <= 200
    assert min(slow.values()) > CAP == LISTED["cap"]
