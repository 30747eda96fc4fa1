"""pytest plugin: record the CPU seconds of every test, with the processes that it waited for.

`pytest --cpu-seconds FILE` appends one JSON line per test: its id and the seconds of set-up, call
and tear-down. `python -m tools.test_times FILE` turns them into tests/slow_tests.json.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--cpu-seconds", type=Path, help="append each test's CPU seconds to this file")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure one test from set-up to tear-down."""
    path = item.config.getoption("--cpu-seconds")
    before = os.times()
    result = yield
    if path is not None:
        spent = sum(os.times()[:4]) - sum(before[:4])
        line = json.dumps({"test": item.nodeid, "seconds": round(spent, 2)}) + "\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    return result
