"""Spread over seeds of finished studies: what a plan without a pilot can expect.

`spreads.json` is written by `python -m tools.evidence` from docs/evidence.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from importlib import resources

from stamm.base.config import from_plain
from stamm.base.json_text import parse_json

FILE = "spreads.json"


@dataclass(frozen=True, kw_only=True)
class StudySpread:
    """Standard deviation of the paired difference over seeds in a finished study, in bits per byte.

    value       pooled over its arms against its baseline
    low, high   95 % interval of the value
    """

    study: str
    parameters: int
    tokens: int
    seeds: int
    arms: tuple[str, ...]
    value: float
    low: float
    high: float


@functools.cache
def finished_studies() -> tuple[StudySpread, ...]:
    """The committed studies."""
    rows = parse_json((resources.files(__package__) / FILE).read_bytes())
    return tuple(from_plain(StudySpread, row) for row in rows)


def nearest_study(parameters: int, tokens: int, arms: tuple[str, ...]) -> StudySpread:
    """The finished study nearest to a plan in size and length; of equally near ones, that with most of its arms.

    parameters, tokens   of an arm of the plan
    """

    def distance(study: StudySpread) -> tuple[float, int, int]:
        away = abs(math.log(study.parameters / parameters)) + abs(math.log(study.tokens / tokens))
        # Arms of one study differ by a few parameters.
        return round(away, 2), -len(set(study.arms) & set(arms)), -study.seeds

    return min(finished_studies(), key=distance)
