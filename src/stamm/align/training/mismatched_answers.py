"""Prompts with answers to other prompts: KTO estimates KL to the reference policy from them.

Checked  tests/unit/align/test_mismatched_answers.py
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from stamm.align.data.encoded import EncodedAnswer
from stamm.base.errors import DataError

_FARTHEST = 1000


class MismatchedAnswers(Sequence[EncodedAnswer | None]):
    """The prompt of each answer, with the answer of the nearest earlier row that has another prompt.

    The first rows continue at the end of the data. A row has None where no answer of the 1,000 rows
    before it fits into the context.

    context   most tokens of prompt and answer
    what      they are, for messages: "held-out answers"

    Raises   DataError when all answers are to one prompt
    Source   TRL 1.16, KTOTrainer: the answers of a batch, shifted by one row
    """

    def __init__(
        self, answers: Sequence[EncodedAnswer], context: int, what: str = "answers"
    ) -> None:
        self._answers = answers
        facts = [(_prompt_hash(a), a.prompt_tokens, len(a.ids)) for a in answers]
        prompts, starts, ends = np.array(facts, dtype=np.int64).reshape(-1, 3).T
        if len(np.unique(prompts)) < 2:
            raise DataError(
                f"all {what} are to one prompt, and KTO compares with answers to other prompts",
                fix="Add rows with other prompts",
            )
        self.partners = _partners(prompts, starts, ends - starts, context)

    def __len__(self) -> int:
        return len(self._answers)

    @overload
    def __getitem__(self, index: int) -> EncodedAnswer | None: ...

    @overload
    def __getitem__(self, index: slice) -> list[EncodedAnswer | None]: ...

    def __getitem__(self, index: int | slice) -> EncodedAnswer | list[EncodedAnswer | None] | None:
        if isinstance(index, slice):
            return [self._at(place) for place in range(*index.indices(len(self)))]
        return self._at(range(len(self))[index])

    def _at(self, place: int) -> EncodedAnswer | None:
        if self.partners[place] < 0:
            return None
        prompt, other = self._answers[place], self._answers[int(self.partners[place])]
        begin, end = prompt.prompt_tokens, other.prompt_tokens
        return replace(
            prompt,
            ids=prompt.ids[:begin] + other.ids[end:],
            supervised=prompt.supervised[:begin] + other.supervised[end:],
        )


def have_other_prompts(answers: Iterable[EncodedAnswer]) -> bool:
    """Whether the answers are to more than one prompt."""
    hashes = map(_prompt_hash, answers)
    first = next(hashes, None)
    return any(other != first for other in hashes)


def _prompt_hash(answer: EncodedAnswer) -> int:
    return zlib.crc32(np.asarray(answer.ids[: answer.prompt_tokens], np.int32).tobytes())


def _partners(
    prompts: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64], context: int
) -> NDArray[np.int64]:
    """Row whose answer each row's prompt gets, -1: none."""
    rows = np.arange(len(prompts))
    found = np.full(len(prompts), -1, dtype=np.int64)
    for back in range(1, min(len(prompts), _FARTHEST + 1)):
        (open_,) = np.nonzero(found < 0)
        if not len(open_):
            break
        other = rows[open_ - back]  # below 0: from the end
        fits = (prompts[other] != prompts[open_]) & (starts[open_] + lengths[other] <= context)
        found[open_[fits]] = other[fits]
    return found
