"""A judge: questions and replies, the store of its replies on disk, and the count of those that cannot be used.

A second run asks nothing that is stored, and a killed run resumes. Every line of the store has a hash of its
content ("check"), which is verified when the file is opened. It holds no question, no key and no address.

Checked  tests/unit/align/test_judge.py, tests/unit/align/test_answer_store.py
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from stamm.base.console import Progress
from stamm.base.errors import DataError, RunError, visible
from stamm.base.files import atomic, sha256_value
from stamm.base.json_text import parse_json

RATING = tuple("123456789")
COMPARISON = tuple("12")


@dataclass(frozen=True)
class JudgeRequest:
    """A question that is answered with one digit.

    system, user   the messages
    digits         possible answers, one character each
    subject        what it is about, for messages: "answers.jsonl, row 3, article 2"
    """

    system: str
    user: str
    digits: tuple[str, ...]
    subject: str

    def key(self, identity: Mapping[str, object]) -> str:
        """SHA-256 of the judge's identity and the question."""
        return sha256_value(
            {
                "judge": dict(identity),
                "system": self.system,
                "user": self.user,
                "digits": list(self.digits),
            }
        )


@dataclass(frozen=True)
class JudgeReply:
    """A reply.

    probabilities   of each digit that has any, as the judge gives them: their sum is at most 1
    text            the text that it generated, cut; untrusted
    prompt_tokens, completion_tokens   counted by the judge
    unknown_keys    of its JSON, whose meaning is not known
    """

    probabilities: Mapping[str, float]
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unknown_keys: tuple[str, ...] = ()

    @property
    def mass(self) -> float:
        """Probability of the digits together."""
        return math.fsum(self.probabilities.values())

    def mean(self) -> float:
        """The mean of the digits, weighted by their probabilities; the mass is above 0."""
        total = math.fsum(int(digit) * p for digit, p in self.probabilities.items())
        return total / self.mass


@dataclass(frozen=True)
class NoReply:
    """A request that failed: the reason in a few words, without text of the request.

    kind   of failure, which is counted: "no reply", "refusal", "content filter", "tool call"
    """

    reason: str
    kind: str = "no reply"


Received = Callable[[int, JudgeReply | NoReply], None]


class JudgeModel(Protocol):
    """A model that answers requests.

    identity   of all that decides its replies, without where it runs
    """

    identity: Mapping[str, object]

    def answer(self, requests: Sequence[JudgeRequest], received: Received) -> None:
        """Call `received` with the place of a request and its reply, in any order, for each.

        Raises   RunError when no request can succeed, and what `received` raises
        """


REPLIES = "requests.jsonl"
_SYNC_EVERY = 64
_STORED = 200


class AnswerStore:
    """The stored replies. Use with `with`.

    path       the file, created when it is missing
    earlier    files of earlier runs; a reply found there is copied into this one
    Raises     DataError for a damaged line, with its number
    """

    def __init__(self, path: Path, earlier: tuple[Path, ...] = ()) -> None:
        self._path = path
        self._earlier = {
            key: reply for store_path in earlier for key, reply, _ in _read(store_path)
        }
        self._replies: dict[str, JudgeReply] = {}
        end = 0
        if path.exists():
            for key, reply, after in _read(path):
                self._replies[key] = reply
                end = after
        self._file: BinaryIO = path.open("ab")
        # After `end` is a partial line that a killed process left.
        self._file.truncate(end)
        self._unsynced = 0

    def __enter__(self) -> AnswerStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    @property
    def replies(self) -> tuple[JudgeReply, ...]:
        """All stored replies, in the order of their keys."""
        return tuple(self._replies[key] for key in sorted(self._replies))

    def get(self, key: str) -> JudgeReply | None:
        """The reply to a question; None when it was not asked before."""
        reply = self._replies.get(key)
        if reply is None and (reply := self._earlier.get(key)) is not None:
            self.add(key, reply)
        return reply

    def add(self, key: str, reply: JudgeReply) -> None:
        """Append a reply; it is on disk when this returns, synced every 64 lines."""
        if key in self._replies:
            return
        row = _row(key, reply)
        self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        self._unsynced += 1
        if self._unsynced >= _SYNC_EVERY:
            os.fsync(self._file.fileno())
            self._unsynced = 0
        self._replies[key] = reply

    def sort(self) -> None:
        """Write the file again in the order of the keys, which concurrency does not change."""
        rows = [
            json.dumps(_row(key, self._replies[key]), ensure_ascii=False)
            for key in sorted(self._replies)
        ]
        with atomic(self._path) as temporary:
            temporary.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def replies_of(path: Path) -> list[JudgeReply]:
    """All replies of a file; [] when it is missing."""
    return [reply for _, reply, _ in _read(path)] if path.exists() else []


def _row(key: str, reply: JudgeReply) -> dict[str, Any]:
    body = {"key": key, **dataclasses.asdict(reply), "text": reply.text[:_STORED]}
    body["probabilities"] = dict(reply.probabilities)
    if not reply.unknown_keys:
        del body["unknown_keys"]
    return {**body, "check": sha256_value(body)[:16]}


def _read(path: Path) -> Iterator[tuple[str, JudgeReply, int]]:
    """Key, reply and end of each whole line."""
    end = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            try:
                row = parse_json(line)
                check = row.pop("check")
                if check != sha256_value(row)[:16]:
                    raise ValueError("its content does not have the recorded hash")
                key = row.pop("key")
                row["unknown_keys"] = tuple(row.get("unknown_keys", ()))
                reply = JudgeReply(**row)
                if not isinstance(key, str) or not 0 <= reply.mass <= 1.001:
                    raise ValueError("values out of range")
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise DataError(
                    f"{path} is damaged: {error}",
                    where=f"line {number}",
                    fix="Restore it from a copy, or delete the line to ask that question again",
                ) from None
            yield key, reply, end


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


@dataclass(frozen=True)
class Judge:
    """Asks a model what is not stored, and refuses replies without a clear digit.

    min_digit_mass   smallest probability of the digits together
    max_unrated      largest share of items without a result
    """

    model: JudgeModel
    store: AnswerStore
    progress: Progress
    _: dataclasses.KW_ONLY
    min_digit_mass: float
    max_unrated: float

    @property
    def identity(self) -> dict[str, object]:
        """Everything that decides the replies."""
        return dict(self.model.identity)

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
        keys = [question.request.key(self.model.identity) for question in questions]
        known = {key: reply for key in keys if (reply := self.store.get(key)) is not None}
        usable: list[JudgeReply | None] = [None] * len(questions)
        positions_by_key: dict[str, list[int]] = {}
        for position, key in enumerate(keys):
            positions_by_key.setdefault(key, []).append(position)

        def use(key: str, reply: JudgeReply | NoReply) -> None:
            for position in positions_by_key[key]:
                question = questions[position]
                problem = self._problem(reply)
                if problem is None and isinstance(reply, JudgeReply):
                    usable[position] = reply
                elif problem is not None:
                    example = f"{question.request.subject}: {problem[1]}"
                    unrated.add(question.item, problem[0], example)
            self._check(unrated, num_items, what)

        for key, reply in known.items():
            use(key, reply)
        missing = [key for key in positions_by_key if key not in known]
        if missing:
            self._ask_model(
                missing, [questions[positions_by_key[key][0]].request for key in missing], use, what
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

        def received(index: int, reply: JudgeReply | NoReply) -> None:
            nonlocal done
            if isinstance(reply, JudgeReply):
                self.store.add(keys[index], reply)
            done += 1
            self.progress.advance(done)
            use(keys[index], reply)

        self.progress.begin(f"judge {what}", len(requests), "questions")
        self.model.answer(requests, received)
        self.progress.end()

    def _problem(self, reply: JudgeReply | NoReply) -> tuple[str, str] | None:
        """The kind of a problem and its description; None for a usable reply."""
        if isinstance(reply, NoReply):
            return reply.kind, reply.reason
        if reply.mass <= 0 or reply.mass < self.min_digit_mass:
            shown = visible(reply.text, _SHOWN)
            return "prose", f"{shown!r}, digits have {reply.mass:.0%} of the probability"
        return None

    def _check(self, unrated: Unrated, num_items: int, what: str) -> None:
        count = len(unrated.reasons)
        if count > math.floor(self.max_unrated * num_items):
            listed = "; ".join(
                f"{number} × {reason} ({unrated.examples[reason]})"
                for reason, number in unrated.counts().items()
            )
            raise RunError(
                f"the judge gave no result for {count} of {num_items:,} {what}, more than "
                f"rating.max_unrated = {self.max_unrated:.0%}: {listed}",
                fix="Correct the judge or its settings, and run the same command again",
            )
