"""One thing that was checked, in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stamm.base.errors import StammError


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was checked, whether it holds, and the numbers that say so."""

    name: str
    passed: bool
    numbers: str

    def line(self) -> str:
        """ok or FAILED, the name, the numbers."""
        return f"{'ok' if self.passed else 'FAILED':<6} {self.name}: {self.numbers}"


def finding(name: str, work: Callable[[], tuple[bool, str]]) -> Finding:
    """The finding of `work`; an error of stamm's own that it raises is a failure with its words."""
    try:
        passed, numbers = work()
    except StammError as error:
        passed, numbers = False, error.line()
    return Finding(name=name, passed=passed, numbers=numbers)
