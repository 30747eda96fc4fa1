"""Items of a task file: rows become questions with answers; rows that cannot are kept with a reason."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stamm.base.errors import ConfigError, DataError
from stamm.corpus.records import clean_field, whole_text
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines
from stamm.evaluate.answer_number import answer_number
from stamm.evaluate.instructions import Instruction, read_instructions
from stamm.evaluate.task_file import EXPANSION, LINE_BYTES, TaskData, TaskDescription

_FIELD = re.compile(r"\{([A-Za-z0-9_.]+)\}")
_LONGEST_LABEL = 128
MOST_CHOICES = 1000
Examples = Mapping[str, tuple[tuple[str, str], ...]]


class RejectedError(Exception):
    """A row cannot be an item; the message is the reason, without text of the row."""


@dataclass(frozen=True, kw_only=True)
class TaskItem:
    """A question.

    line       of the data file: with it two models are compared item by item
    name       the row's "id", for people
    context    "" for minimal pairs, cloze and perplexity
    choices    of a choice task; else ()
    label      number of the right choice; -1 without choices
    answer     text that is checked: the right choice, the answer, the last word, or the whole text
    groups     value of each field that results are given by
    cluster    items of one cluster depend on each other; "" for an item by itself
    instructions   that an answer is checked by
    """

    line: int
    name: str
    context: str
    choices: tuple[str, ...]
    label: int
    answer: str
    groups: Mapping[str, str]
    cluster: str
    instructions: tuple[Instruction, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RejectedRow:
    """A row that cannot be an item, and why."""

    line: int
    reason: str


def read_items(task: TaskData) -> Iterator[TaskItem | RejectedRow]:
    """The items of a task's split in the order of the file, and its rejected rows.

    Edge     memory does not grow with the file
    Raises   DataError when the file is cut or damaged.
    """
    for line, row in _rows(task):
        if isinstance(row, RejectedRow):
            yield row
        elif not task.description.split or row.get("split") == task.description.split:
            try:
                yield _item(task.description, row, line)
            except RejectedError as error:
                yield RejectedRow(line=line, reason=str(error))


def choose_examples(task: TaskData, shots: int, seed: int) -> Examples:
    """Few-shot examples, question and answer, for each value of the first group field.

    They are the `shots` items of shots_split with the smallest hashes of seed and line, so every
    question of a language has the same ones.

    Raises   ConfigError when the task names no such split, or it has too few items of a language.
    """
    described = task.description
    if shots == 0:
        return {}
    if not described.shots_split or described.shots_split == described.split:
        raise ConfigError(
            f"shots = {shots}, and the task {task.name} names no other split for examples",
            where="evaluate.shots",
            fix='Set "shots_split" in its description, or shots=0',
        )
    chosen: dict[str, list[tuple[str, tuple[str, str]]]] = {}
    for line, row in _rows(task):
        if isinstance(row, RejectedRow) or row.get("split") != described.shots_split:
            continue
        try:
            if described.shots_answer:
                pair = _filled(described.context, row), _filled(described.shots_answer, row)
            else:
                item = _item(described, row, line)
                pair = item.context, item.answer
        except RejectedError:
            continue
        rank = hashlib.sha256(f"{seed}:{line}".encode()).hexdigest()
        among = chosen.setdefault(first_group(_groups(described, row)), [])
        among.append((rank, pair))
        among.sort()
        del among[shots:]
    if any(len(among) < shots for among in chosen.values()) or not chosen:
        fewest = min(map(len, chosen.values()), default=0)
        raise ConfigError(
            f"shots = {shots}, and split {described.shots_split!r} of {task.name} has {fewest} items",
            where="evaluate.shots",
            fix=f"Set shots={fewest} or less",
        )
    return {key: tuple(pair for _, pair in among) for key, among in chosen.items()}


def first_group(groups: Mapping[str, str]) -> str:
    """The value of an item's first group field, by which few-shot examples are chosen."""
    return next(iter(groups.values()), "")


def _rows(task: TaskData) -> Iterator[tuple[int, dict[str, Any] | RejectedRow]]:
    with BoundedStream(task.data, EXPANSION) as stream:
        try:
            for line in bounded_lines(stream, LINE_BYTES):
                if line.number <= task.skip or not line.data.strip():
                    continue
                if line.size > LINE_BYTES:
                    yield line.number, RejectedRow(line=line.number, reason="longer than 1 MiB")
                    continue
                try:
                    row = json.loads(line.data.decode("utf-8-sig"))
                except (ValueError, RecursionError):
                    row = None
                if isinstance(row, dict):
                    yield line.number, row
                else:
                    yield line.number, RejectedRow(line=line.number, reason="not a JSON object")
        except StreamError as stopped:
            raise DataError(
                f"{task.data} is cut or damaged: {stopped.detail}", fix="Get the file again"
            ) from None


def _item(described: TaskDescription, row: dict[str, Any], line: int) -> TaskItem:
    context, answer, label = "", "", -1
    choices: tuple[str, ...] = ()
    instructions: tuple[Instruction, ...] = ()
    if described.is_choice:
        choices = _choices(described, row)
        label = 0 if described.kind == "minimal_pairs" else _label(described, row, choices)
        answer = choices[label]
        if described.kind == "multiple_choice":
            context = _filled(described.context, row)
    elif described.kind == "generation":
        context, answer = _filled(described.context, row), _text(row, described.answer)
        if described.match == "number" and answer_number(answer) is None:
            raise RejectedError(f"{described.answer!r} has no number")
    elif described.kind == "instructions":
        context = answer = _filled(described.context, row)
        instructions = _instructions(row)
    else:
        answer = _filled(described.text, row)
        if described.kind == "cloze":
            context, _, answer = answer.rstrip().rpartition(" ")
    if not answer.strip():
        raise RejectedError("empty text")
    if described.kind not in ("minimal_pairs", "perplexity") and not context.strip():
        raise RejectedError("empty context")
    return TaskItem(
        line=line,
        name=_label_text(row.get("id", "")),
        context=context,
        choices=choices,
        label=label,
        answer=answer,
        groups=_groups(described, row),
        cluster=_label_text(row.get(described.cluster, "")) if described.cluster else "",
        instructions=instructions,
    )


def _groups(described: TaskDescription, row: dict[str, Any]) -> dict[str, str]:
    return {key: _label_text(row[key]) for key in described.groups if key in row}


def _instructions(row: dict[str, Any]) -> tuple[Instruction, ...]:
    try:
        return read_instructions(row)
    except DataError:
        raise RejectedError("an instruction that is not known, or wrong arguments") from None


def _choices(described: TaskDescription, row: dict[str, Any]) -> tuple[str, ...]:
    wanted = described.choices
    if len(wanted) == 1 and "{" not in wanted[0]:
        found = _value(row, wanted[0])
        if not isinstance(found, list):
            raise RejectedError(f"{wanted[0]!r} is not a list")
        if not all(isinstance(one, str) for one in found):
            raise RejectedError(f"{wanted[0]!r} contains something else than texts")
        choices = tuple(whole_text(one) for one in found)
    else:
        choices = tuple(_filled(one, row) for one in wanted)
    if not 2 <= len(choices) <= MOST_CHOICES:
        raise RejectedError(f"fewer than 2 or more than {MOST_CHOICES} choices")
    if not all(one.strip() for one in choices):
        raise RejectedError("an empty choice")
    return choices


def _label(described: TaskDescription, row: dict[str, Any], choices: tuple[str, ...]) -> int:
    found = _value(row, described.answer)
    if described.labels:
        labels = _value(row, described.labels)
        if not isinstance(labels, list) or labels.count(found) != 1 or len(labels) != len(choices):
            raise RejectedError(f"{described.answer!r} is not one of {described.labels!r}")
        return labels.index(found)
    if isinstance(found, list) and len(found) == len(choices) and found.count(1) == 1:
        return found.index(1)
    if isinstance(found, str):
        if choices.count(found) == 1:
            return choices.index(found)
        found = ord(found) - ord("A") if len(found) == 1 and found.isalpha() else None
    if isinstance(found, bool) or not isinstance(found, int):
        raise RejectedError(f"{described.answer!r} names no choice")
    if not 0 <= found < len(choices):
        raise RejectedError(f"{described.answer!r} is out of range")
    return found


def _filled(template: str, row: dict[str, Any]) -> str:
    """The template with its fields; texts of fields are not templates themselves."""
    return _FIELD.sub(lambda match: _text(row, match.group(1)), template)


def _text(row: dict[str, Any], name: str) -> str:
    found = _value(row, name)
    if isinstance(found, bool) or not isinstance(found, str | int | float):
        raise RejectedError(f"{name!r} is neither text nor a number")
    return whole_text(str(found))


def _value(row: dict[str, Any], name: str) -> Any:
    found: Any = row
    for key in name.split("."):
        if not isinstance(found, dict) or key not in found:
            raise RejectedError(f"no field {name!r}")
        found = found[key]
    return found


def _label_text(value: object) -> str:
    return clean_field(str(value))[:_LONGEST_LABEL] if isinstance(value, str | int) else ""
