"""pytest plugin: mark slow tests from their measured CPU time, and measure it again.

`tests/slow_tests.json` lists every test that took more than 2 CPU seconds, with the processes that
it waited for. This plugin marks each of them `slow`, except those that the same file keeps among
the fast tests with a reason. `pytest --cpu-seconds FILE` appends one JSON line per test, its id
and the seconds of set-up, call and tear-down; `python -m tools.test_times FILE` updates the list.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked

SLOW_TESTS = Path(__file__).with_name("slow_tests.json")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--cpu-seconds", type=Path, help="append each test's CPU seconds to this file")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the listed tests, before `-m` selects."""
    listed = json.loads(SLOW_TESTS.read_text())
    slow = listed["slow"].keys() - listed["kept_fast"].keys()
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure one test from set-up to tear-down."""
    path = item.config.getoption("--cpu-seconds")
    before = sum(os.times()[:4]) + forked.SPENT[0]
    result = yield
    if path is not None:
        spent = sum(os.times()[:4]) + forked.SPENT[0] - before
        line = json.dumps({"test": item.nodeid, "seconds": round(spent, 2)}) + "\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    return result
