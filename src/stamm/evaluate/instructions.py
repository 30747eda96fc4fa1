"""Instructions of a row that a program can verify: ids and arguments are columns, as in IFEval."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from stamm.base.config import nearest
from stamm.base.errors import DataError, visible
from stamm.corpus.language.config import LanguageConfig
from stamm.corpus.language.identify import LanguageIdentifier
from stamm.evaluate.instruction_arguments import InstructionArguments
from stamm.evaluate.instruction_checks import CHECKS

IDS, ARGUMENTS = "instruction_id_list", "kwargs"
LONGEST_TEXT = 200_000
"""Characters of an answer; a longer one follows nothing."""
_LANGUAGE = re.compile(r"([a-z]{2}):(.+)")


class Instruction(NamedTuple):
    """The arguments of an instruction, and the key of its check."""

    arguments: InstructionArguments
    key: str


def read_instructions(row: Mapping[str, Any]) -> tuple[Instruction, ...]:
    """The instructions of a row.

    Raises   DataError for a row without instructions, and for one that is not known or lacks an
             argument
    """
    ids, arguments = row.get(IDS), row.get(ARGUMENTS)
    if not isinstance(ids, list | tuple) or not ids:
        raise DataError(f"the row has no column {IDS} with a list of instructions")
    if not isinstance(arguments, list | tuple) or len(arguments) != len(ids):
        raise DataError(f"the row has {len(ids)} instructions, and not as many {ARGUMENTS}")
    read = tuple(_instruction(*pair) for pair in zip(ids, arguments, strict=True))
    for given, key in read:
        CHECKS[key]("-", given)  # the arguments are checked whatever the answer is
    return read


def followed(instructions: Sequence[Instruction], text: str, *, loose: bool) -> list[bool]:
    """Whether a text follows each instruction; an empty one follows none.

    loose   whether it counts when one of the texts of `loosened` follows it
    """
    texts = list(dict.fromkeys(loosened(text))) if loose else [text]
    texts = [variant for variant in texts if variant.strip() and len(variant) <= LONGEST_TEXT]
    return [any(CHECKS[key](variant, given) for variant in texts) for given, key in instructions]


def loosened(text: str) -> Iterator[str]:
    """The text, and what is left without its first line, its last line, and Markdown's asterisks.

    Source   arXiv 2311.07911, section 2.2: the eight combinations of the loose criterion
    """
    lines = text.split("\n")
    for first, last, stars in itertools.product((0, 1), (0, 1), (False, True)):
        shortened = "\n".join(lines[first : len(lines) - last]).strip() if first or last else text
        yield shortened.replace("*", "") if stars else shortened


def _instruction(name: object, values: object) -> Instruction:
    match = _LANGUAGE.fullmatch(str(name))
    language, key = match.groups() if match else ("", str(name))
    if key not in CHECKS:
        shown = visible(str(name), 80)
        raise DataError(f"instruction {shown} is not known", fix=nearest(key, CHECKS))
    if values is not None and not isinstance(values, Mapping):
        raise DataError(f"{ARGUMENTS} of {visible(str(name), 80)} is not an object")
    return Instruction(InstructionArguments(str(name), values or {}, language, _identify), key)


def _identify(text: str) -> str:
    return _identifier().identify(text).language


@functools.cache
def _identifier() -> LanguageIdentifier:
    return LanguageIdentifier(LanguageConfig())
