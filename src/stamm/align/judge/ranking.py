"""Order of the answers of a prompt: means of ratings, pairwise comparisons of the best, ranks, rewards.

Source   Apertus technical report (arXiv 2509.14233), section 4.3 and appendix: the five best by the
         ratings are ordered by an odd-even transposition sort
Checked  tests/unit/align/test_ranking.py
"""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[int, int]


class TranspositionSort:
    """An odd-even transposition sort whose comparisons are asked for round by round.

    items   numbers of the answers, presumably best first
    After len(items) rounds the order is sorted if comparisons are transitive; if not, it is the
    order after these rounds, which depends on the first one. No pair is asked for twice.
    """

    def __init__(self, items: Sequence[int]) -> None:
        self.order = list(items)
        self._round = 0
        self._better: dict[Pair, bool] = {}

    def pairs(self) -> list[Pair]:
        """The pairs whose comparison is needed next; [] when the sort has ended.

        The first of a pair is before the second in the present order.
        """
        while self._round < len(self.order):
            missing = [pair for pair in self._neighbours() if pair not in self._better]
            if missing:
                return missing
            self._exchange()
        return []

    def decide(self, pair: Pair, first_is_better: bool) -> None:
        """Record the comparison of a pair."""
        first, second = pair
        self._better[first, second] = first_is_better
        self._better[second, first] = not first_is_better

    def _neighbours(self) -> list[Pair]:
        start = self._round % 2
        places = range(start, len(self.order) - 1, 2)
        return [(self.order[place], self.order[place + 1]) for place in places]

    def _exchange(self) -> None:
        for place in range(self._round % 2, len(self.order) - 1, 2):
            first, second = self.order[place], self.order[place + 1]
            if not self._better[first, second]:
                self.order[place : place + 2] = [second, first]
        self._round += 1


def by_rating(means: Sequence[float]) -> list[int]:
    """Numbers of the answers, highest mean first; equal ones in their order."""
    return sorted(range(len(means)), key=lambda i: -means[i])


def ranks(means: Sequence[float], best: Sequence[int]) -> list[float]:
    """Rank of each answer, 1 for the best.

    means   of the ratings
    best    the top answers in the order of the comparisons; the others follow by their means, equal
            means share the mean of their ranks
    """
    found = [0.0] * len(means)
    for place, item in enumerate(best, 1):
        found[item] = float(place)
    others = [item for item in by_rating(means) if found[item] == 0]
    first = 0
    while first < len(others):
        last = first
        while last + 1 < len(others) and means[others[last + 1]] == means[others[first]]:
            last += 1
        shared = len(best) + (first + last) / 2 + 1
        for item in others[first : last + 1]:
            found[item] = shared
        first = last + 1
    return found


def repeated_ranks(distinct: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Ranks among all answers, for answers that occur `counts` times.

    distinct   ranks among the distinct answers; equal answers share the mean of their ranks
    """
    found = []
    for rank in distinct:
        before = sum(c for r, c in zip(distinct, counts, strict=True) if r < rank)
        equal = sum(c for r, c in zip(distinct, counts, strict=True) if r == rank)
        found.append(before + (equal + 1) / 2)
    return found


def reward(rank: float, count: int) -> float:
    """The mid-rank quantile of an answer among `count` of its prompt, in (0, 1): (count - rank + 1/2) / count."""
    return (count - rank + 0.5) / count
