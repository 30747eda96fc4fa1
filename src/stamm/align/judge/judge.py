"""A judge: a model, the store of its replies, and the count of those that cannot be used.

Checked  tests/unit/align/test_judge.py
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stamm.align.judge.answer_store import AnswerStore
from stamm.align.judge.request import JudgeModel, JudgeReply, JudgeRequest, NoReply
from stamm.base.console import Progress
from stamm.base.errors import RunError, visible
from stamm.base.files import sha256_value

_SHOWN = 60
_Use = Callable[[str, JudgeReply | NoReply], None]


@dataclass(frozen=True)
class JudgeQuestion:
    """A request, and the number of the item (row, comparison) that has no result if it fails."""

    item: int
    request: JudgeRequest


@dataclass
class Unrated:
    """Items without a result: the reason of each, and an example of each kind of reason."""

    reasons: dict[int, str] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, item: int, reason: str, example: str) -> None:
        """Note an item; the first reason counts."""
        if item not in self.reasons:
            self.reasons[item] = reason
            self.examples.setdefault(reason, example)

    def counts(self) -> dict[str, int]:
        """Items by reason, most frequent first."""
        return dict(collections.Counter(self.reasons.values()).most_common())


class Judge:
    """Asks a model what is not stored, and refuses replies without a clear digit.

    min_digit_mass   smallest probability of the digits together
    max_unrated      largest share of items without a result
    """

    def __init__(
        self,
        model: JudgeModel,
        store: AnswerStore,
        progress: Progress,
        *,
        min_digit_mass: float,
        max_unrated: float,
    ) -> None:
        self._model = model
        self._store = store
        self._progress = progress
        self._min_digit_mass = min_digit_mass
        self._max_unrated = max_unrated

    @property
    def identity(self) -> dict[str, object]:
        """Everything that decides the replies."""
        return dict(self._model.identity)

    @property
    def identity_sha256(self) -> str:
        """SHA-256 of `identity`."""
        return sha256_value(self.identity)

    def ask(
        self, questions: Sequence[JudgeQuestion], num_items: int, unrated: Unrated, what: str
    ) -> list[JudgeReply | None]:
        """The reply to each question; None for one that failed or that has no clear digit.

        num_items   of which the allowed share may have no result
        unrated     items without a result, which are added to it
        what        the items, for messages: "answers"

        Raises      RunError when too many have no result, and what the model raises
        """
        self._check(unrated, num_items, what)
        keys = [question.request.key(self._model.identity) for question in questions]
        found = {key: reply for key in keys if (reply := self._store.get(key)) is not None}
        usable: list[JudgeReply | None] = [None] * len(questions)
        places: dict[str, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(key, []).append(place)

        def use(key: str, reply: JudgeReply | NoReply) -> None:
            for place in places[key]:
                question = questions[place]
                problem = self._problem(reply)
                if problem is None and isinstance(reply, JudgeReply):
                    usable[place] = reply
                elif problem is not None:
                    came = f"{question.request.subject}: {problem[1]}"
                    unrated.add(question.item, problem[0], came)
            self._check(unrated, num_items, what)

        for key, reply in found.items():
            use(key, reply)
        missing = [key for key in places if key not in found]
        if missing:
            self._ask_model(
                missing, [questions[places[key][0]].request for key in missing], use, what
            )
        return usable

    def _ask_model(
        self,
        keys: Sequence[str],
        requests: Sequence[JudgeRequest],
        use: _Use,
        what: str,
    ) -> None:
        done = 0

        def received(place: int, reply: JudgeReply | NoReply) -> None:
            nonlocal done
            if isinstance(reply, JudgeReply):
                self._store.add(keys[place], reply)
            done += 1
            self._progress.advance(done)
            use(keys[place], reply)

        self._progress.begin(f"judge {what}", len(requests), "questions")
        self._model.answer(requests, received)
        self._progress.end()

    def _problem(self, reply: JudgeReply | NoReply) -> tuple[str, str] | None:
        """The kind of a problem and its description; None for a usable reply."""
        if isinstance(reply, NoReply):
            return reply.kind, reply.reason
        if reply.mass <= 0 or reply.mass < self._min_digit_mass:
            shown = visible(reply.text, _SHOWN)
            return "prose", f"{shown!r}, digits have {reply.mass:.0%} of the probability"
        return None

    def _check(self, unrated: Unrated, num_items: int, what: str) -> None:
        count = len(unrated.reasons)
        if count > math.floor(self._max_unrated * num_items):
            listed = "; ".join(
                f"{number} × {reason} ({unrated.examples[reason]})"
                for reason, number in unrated.counts().items()
            )
            raise RunError(
                f"the judge gave no result for {count} of {num_items:,} {what}, more than "
                f"rating.max_unrated = {self._max_unrated:.0%}: {listed}",
                fix="Correct the judge or its settings, and run the same command again",
            )
