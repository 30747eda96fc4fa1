"""Reward of followed instructions: ids and arguments are columns of each row, as in IFEval.

Checked  tests/unit/align/test_instructions.py
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from stamm.align.rewards.instruction_arguments import InstructionArguments
from stamm.align.rewards.instruction_checks import CHECKS
from stamm.align.rewards.reward import Answer
from stamm.align.rewards.reward_config import Instructions
from stamm.base.config import nearest
from stamm.base.errors import DataError, visible
from stamm.corpus.language.config import LanguageConfig
from stamm.corpus.language.identify import LanguageIdentifier

IDS, ARGUMENTS = "instruction_id_list", "kwargs"
LONGEST_TEXT = 200_000
"""Characters of an answer; a longer one follows nothing."""
_LANGUAGE = re.compile(r"([a-z]{2}):(.+)")


class InstructionReward:
    """See `reward_config.Instructions`."""

    name = "instructions"

    def __init__(self, config: Instructions) -> None:
        self._config = config
        self._identifier = LanguageIdentifier(LanguageConfig())

    def __call__(self, answer: Answer) -> float:
        """1 or 0, or the share of the row's instructions that are followed."""
        followed = self.followed(answer)
        if self._config.count == "all":
            return float(all(followed))
        return sum(followed) / len(followed)

    def followed(self, answer: Answer) -> list[bool]:
        """Whether each of the row's instructions is followed.

        Raises   DataError for a row without instructions, and for one that is not known or lacks an
                 argument
        """
        text = answer.text
        texts = [text] if self._config.mode == "strict" else list(dict.fromkeys(loosened(text)))
        texts = [each for each in texts if each.strip() and len(each) <= LONGEST_TEXT]
        followed = []
        for given, key in self._instructions(answer.row):
            # The arguments of a row are checked whatever the answer is.
            CHECKS[key]("-", given)
            followed.append(any(CHECKS[key](each, given) for each in texts))
        return followed

    def _instructions(self, row: Mapping[str, Any]) -> Iterator[tuple[InstructionArguments, str]]:
        ids, arguments = row.get(IDS), row.get(ARGUMENTS)
        if not isinstance(ids, list | tuple) or not ids:
            raise DataError(f"the row has no column {IDS} with a list of instructions")
        if not isinstance(arguments, list | tuple) or len(arguments) != len(ids):
            raise DataError(f"the row has {len(ids)} instructions, and not as many {ARGUMENTS}")
        for name, values in zip(ids, arguments, strict=True):
            found = _LANGUAGE.fullmatch(str(name))
            language, key = found.groups() if found else ("", str(name))
            if key not in CHECKS:
                shown = visible(str(name), 80)
                raise DataError(f"instruction {shown} is not known", fix=nearest(key, CHECKS))
            if values is not None and not isinstance(values, Mapping):
                raise DataError(f"{ARGUMENTS} of {visible(str(name), 80)} is not an object")
            yield InstructionArguments(str(name), values or {}, language, self._identify), key

    def _identify(self, text: str) -> str:
        return self._identifier.identify(text).language


def loosened(text: str) -> Iterator[str]:
    """The text, and what is left without its first line, its last line, and Markdown's asterisks.

    Source   arXiv 2311.07911, section 2.2: the eight combinations of the loose criterion
    """
    lines = text.split("\n")
    for first, last, stars in itertools.product((0, 1), (0, 1), (False, True)):
        left = "\n".join(lines[first : len(lines) - last]).strip() if first or last else text
        yield left.replace("*", "") if stars else left
