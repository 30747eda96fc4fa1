"""Metrics, groups and blind baselines of a task, from its lines of items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stamm.base.time_limit import MATCH_SECONDS
from stamm.evaluate.blind import BlindSummary, most_frequent
from stamm.evaluate.fairness import language_fairness
from stamm.evaluate.records import ItemLine
from stamm.evaluate.task import TaskMetric, ratio_metric
from stamm.statistics.clustered_ratio import ClusteredRatio

MOST_GROUPS = 1000
MANY = "(others)"
LANGUAGE = "language"


@dataclass
class _Group:
    """Main metric and chance over the items of one group."""

    ratio: ClusteredRatio = field(default_factory=ClusteredRatio)
    chance: ClusteredRatio = field(default_factory=ClusteredRatio)


class ItemSummary:
    """Metrics of lines of items, read one by one: memory does not grow with them.

    main           the main metric
    has_majority   whether the most frequent answer is a blind baseline
    cluster        field that the clusters are values of; within a group by the same field, each item
                   is a cluster of its own
    """

    def __init__(self, main: str, *, has_majority: bool, cluster: str = "") -> None:
        self._main, self._has_majority, self._cluster = main, has_majority, cluster
        self.items = self.truncated = self.unanswered = 0
        self.rejected: Counter[str] = Counter()
        self._values: dict[str, ClusteredRatio] = {}
        self._blind = BlindSummary()
        self._chance = ClusteredRatio()
        self._groups: dict[str, dict[str, _Group]] = {}

    def read(self, lines: Callable[[], Iterator[ItemLine]]) -> None:
        """Add every line.

        lines   gives all lines, and again the same ones
        """
        majority = text = ""
        if self._has_majority:
            majority = most_frequent(lambda: filter(None, map(_answer, lines())))
            text = most_frequent(lambda: filter(None, map(_right_text, lines())), least=2)
        for line in lines():
            if line.rejected:
                self.rejected[line.rejected] += 1
            else:
                self._add(line, majority, text)

    def _add(self, line: ItemLine, majority: str, text: str) -> None:
        self.items += 1
        self.truncated += line.truncated
        self.unanswered += line.unanswered
        for name, value in line.values.items():
            weight = line.weights.get(name, line.weight)
            self._values.setdefault(name, ClusteredRatio()).add(
                value * weight, weight, line.cluster
            )
        main = line.values[self._main]
        weight = line.weights.get(self._main, line.weight)
        blind = dict(line.blind)
        if majority:
            blind["majority"] = float(_answer(line) == majority)
        if text and line.texts:
            known = text in line.texts
            blind["majority_text"] = (
                float(_right_text(line) == text) if known else line.chance or 0.0
            )
        self._blind.add(main, blind, line.cluster, weight)
        if line.chance is not None:
            self._chance.add(line.chance * weight, weight)
        for key, value_of in line.groups.items():
            among = self._groups.setdefault(key, {})
            known = value_of in among or len(among) < MOST_GROUPS
            group = among.setdefault(value_of if known else MANY, _Group())
            cluster = "" if key == self._cluster else line.cluster
            group.ratio.add(main * weight, weight, cluster)
            group.chance.add(line.chance or 0.0)

    def metrics(self) -> dict[str, TaskMetric]:
        """Every metric, the main one first."""
        names = [self._main, *(name for name in self._values if name != self._main)]
        return {name: ratio_metric(self._values[name], self._guess()) for name in names}

    def _guess(self) -> float | None:
        return self._chance.value if self._chance.count else None

    def details(self) -> dict[str, Any]:
        """Groups, fairness over languages, blind baselines and rejected rows."""
        chance = self._guess()
        languages = self._groups.get(LANGUAGE, {})
        details: dict[str, Any] = {
            "clusters": self._values[self._main].clusters,
            "groups": {
                key: {
                    name: {
                        "items": group.ratio.count,
                        "value": group.ratio.value,
                        "standard_error": group.ratio.standard_error,
                        "interval_95": _interval(group.ratio),
                        "chance": None if chance is None else group.chance.value,
                    }
                    for name, group in sorted(among.items())
                }
                for key, among in self._groups.items()
            },
            "fairness": language_fairness(
                self._main,
                {name: group.ratio.value for name, group in languages.items() if name != MANY},
            ),
            "rejected": dict(self.rejected),
            "truncated": self.truncated,
            "unanswered": self.unanswered,
            **self._blind.details(chance),
        }
        warnings = [details.get("warning", "")]
        if self.truncated:
            warnings.append(
                f"{self.truncated:,} of {self.items:,} contexts were cut to fit into the model's"
            )
        if self.unanswered:
            warnings.append(
                f"{self.unanswered:,} of {self.items:,} items count as unanswered: the match of "
                f"`pattern` took more than {MATCH_SECONDS} s"
            )
        return {**details, "warning": "; ".join(filter(None, warnings))}


def _interval(ratio: ClusteredRatio) -> list[float] | None:
    half = ratio.half_width
    return None if half is None else [ratio.value - half, ratio.value + half]


def _right_text(line: ItemLine) -> str:
    return line.texts[line.label] if 0 <= line.label < len(line.texts) else ""


def _answer(line: ItemLine) -> str:
    return line.answer or (str(line.label) if line.label >= 0 else "")
