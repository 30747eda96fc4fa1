"""Questions to a judge and its replies, and the protocol of the models that give them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stamm.base.files import sha256_value

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
