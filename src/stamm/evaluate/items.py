"""Items of a task file: rows become questions with answers; rows that cannot are kept with a reason."""

from __future__ import annotations

import csv
import hashlib
import heapq
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stamm.base.errors import ConfigError, DataError
from stamm.base.json_text import RepeatedKeyError, parse_json
from stamm.corpus.documents import clean_field, whole_text
from stamm.corpus.language.codes import script_of
from stamm.corpus.quality.word_split import WITHOUT_BLANKS
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines
from stamm.evaluate.answer_number import answer_number
from stamm.evaluate.instructions import Instruction, read_instructions
from stamm.evaluate.task_file import (
    EXPANSION,
    LINE_BYTES,
    PROBABILITY,
    TaskData,
    TaskDescription,
)

_FIELD = re.compile(r"\{([^{}]+)\}")
_TEXT_OF_LIST = re.compile(r"\s*\[\s*([\"']).*\1\s*\]\s*", re.DOTALL)
_LONGEST_LABEL = 128
MOST_CHOICES = 1000
_LABELS = (
    'Set "labels" in the description: ["0", "1", …] for numbers, ["A", "B", …] for letters, '
    'what "choices" is for texts'
)
COPY = "a copy of an earlier item"
Examples = Mapping[str, tuple[tuple[str, str], ...]]


class RejectedError(Exception):
    """A row cannot be an item; the message is the reason, without text of the row."""


class _BehindLastError(RejectedError):
    """The label is the number of choices: out of range, or numbers begin with 1."""


class _AmbiguousError(Exception):
    """A label is the text of a choice, and the number or letter of another."""


@dataclass(frozen=True, kw_only=True)
class TaskItem:
    """A question.

    line       of the data file: with it two models are compared item by item
    name       the row's "id", for people
    context    "" for minimal pairs, cloze and perplexity
    choices    of a choice task; else ()
    rights     numbers of the right choices; () without choices
    answer     text that is checked: the right choice, the answer, the last word, or the whole text
    accepted   all right answers of a generation
    blank      place of the choices in the context; -1 where they follow it
    groups     value of each field that results are given by
    cluster    items of one cluster depend on each other; "" for an item by itself
    instructions   that an answer is checked by
    """

    line: int
    name: str
    context: str
    choices: tuple[str, ...]
    rights: tuple[int, ...]
    answer: str
    accepted: tuple[str, ...]
    blank: int
    groups: Mapping[str, str]
    cluster: str
    instructions: tuple[Instruction, ...] = ()

    @property
    def label(self) -> int:
        """Number of the first right choice; -1 without choices."""
        return self.rights[0] if self.rights else -1


@dataclass(frozen=True, kw_only=True)
class RejectedRow:
    """A row that cannot be an item, and why."""

    line: int
    reason: str


def read_items(task: TaskData) -> Iterator[TaskItem | RejectedRow]:
    """The items of a task's split in the order of the file, and its rejected rows.

    Edge     a copy of an earlier item is rejected; a hash of each item is kept in memory
    Raises   DataError when the file is cut or damaged, and for labels that can be read in two ways.
    """
    if task.limit is None:
        yield from _items(task)
        return
    ranks = (
        (_rank("", item.line), item.line) for item in _items(task) if isinstance(item, TaskItem)
    )
    chosen = {line for _, line in heapq.nsmallest(task.limit, ranks)}
    yield from (
        item for item in _items(task) if isinstance(item, RejectedRow) or item.line in chosen
    )


def _items(task: TaskData) -> Iterator[TaskItem | RejectedRow]:
    known: set[bytes] = set()
    splits: dict[str, int] = {}
    from_one, has_zero = 0, False
    all_asked = not task.description.split and "split" not in task.description.groups
    for line, row in _rows(task):
        if isinstance(row, RejectedRow):
            yield row
            continue
        if all_asked and isinstance(row.get("split"), str):
            splits.setdefault(row["split"], line)
            if len(splits) > 1:
                raise DataError(
                    f"the items are of splits {' and '.join(map(repr, splits))}, and the description "
                    "names none",
                    where=f"{task.data}, line {line}",
                    fix='Set "split" to the one that is asked, or give results by it: "groups": ["split"]',
                )
        if not task.description.split or row.get("split") == task.description.split:
            try:
                item = _item_of(task, row, line)
                has_zero = has_zero or str(_value_or_none(row, task.description.answer)) == "0"
            except RejectedError as error:
                if isinstance(error, _BehindLastError):
                    from_one = from_one or line
                yield RejectedRow(line=line, reason=str(error))
                continue
            content = repr(
                (
                    item.context, item.choices, item.rights, item.answer, item.accepted, item.groups,
                    [(instruction.arguments.name, instruction.arguments.values) for instruction in item.instructions],
                )
            )  # fmt: skip
            key = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            yield RejectedRow(line=line, reason=COPY) if key in known else item
            known.add(key)
    if from_one and not has_zero:
        raise DataError(
            f"{task.description.answer!r} is never 0, and here the number of choices: its numbers "
            "begin with 1, or the row is wrong",
            where=f"{task.data}, line {from_one}",
            fix='Set "labels": ["1", "2", …] in the description, or correct the row',
        )


def _rank(seed: object, line: int) -> str:
    return hashlib.sha256(f"{seed}:{line}".encode()).hexdigest()


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
                item = _item_of(task, row, line)
                pair = item.context, item.answer
                if described.blank:
                    before, _, after = item.context.partition(described.blank)
                    pair = before + item.answer, after
        except RejectedError:
            continue
        among = chosen.setdefault(first_group(_groups(described, row)), [])
        among.append((_rank(seed, line), pair))
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
    name = task.data.name.lower().removesuffix(".gz").removesuffix(".zst")
    separator = {".csv": ",", ".tsv": "\t"}.get(name[-4:])
    with BoundedStream(task.data, EXPANSION) as stream:
        try:
            lines = _decoded(task, stream)
            yield from _table(lines, separator, task) if separator else _objects(lines)
        except StreamError as stopped:
            raise DataError(
                f"{task.data} is cut or damaged: {stopped.detail}", fix="Get the file again"
            ) from None


def _decoded(task: TaskData, stream: BoundedStream) -> Iterator[tuple[int, str | RejectedRow]]:
    encoding = task.description.encoding
    if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        encoding = "utf-8-sig"
    for line in bounded_lines(stream, LINE_BYTES):
        if line.number <= task.skip:
            continue
        reason = "longer than 1 MiB" if line.size > LINE_BYTES else ""
        text = ""
        try:
            text = "" if reason else line.data.decode(encoding)
        except UnicodeDecodeError:
            reason = f"not {task.description.encoding} text"
        yield line.number, RejectedRow(line=line.number, reason=reason) if reason else text


def _objects(
    lines: Iterator[tuple[int, str | RejectedRow]],
) -> Iterator[tuple[int, dict[str, Any] | RejectedRow]]:
    """Rows of JSONL."""
    for number, text in lines:
        if isinstance(text, RejectedRow):
            yield number, text
        elif text.strip():
            try:
                row = parse_json(text)
            except RepeatedKeyError as error:
                yield number, RejectedRow(line=number, reason=str(error))
                continue
            except (ValueError, RecursionError):
                row = None
            known = isinstance(row, dict)
            yield number, row if known else RejectedRow(line=number, reason="not a JSON object")


def _table(
    lines: Iterator[tuple[int, str | RejectedRow]], separator: str, task: TaskData
) -> Iterator[tuple[int, dict[str, Any] | RejectedRow]]:
    """Rows of CSV (with quotes) or TSV (without); the first has the names of the fields."""
    rejected: list[RejectedRow] = []
    number = 0

    def texts() -> Iterator[str]:
        nonlocal number
        for line in lines:
            number, text = line
            if isinstance(text, RejectedRow):
                rejected.append(text)
            else:
                yield text.rstrip("\r") + "\n"

    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE
    reader = csv.reader(texts(), delimiter=separator, quoting=quoting)
    names: list[str] | None = None
    while True:
        try:
            row = next(reader, None)
        except csv.Error:
            row = ["", ""] * (1 + len(names or ()))  # never as many as names
        yield from ((rejected_row.line, rejected_row) for rejected_row in rejected)
        rejected.clear()
        if row is None:
            return
        if names is None:
            names = row
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise DataError(
                    f"two columns are called {twice!r}",
                    where=f"{task.data}, line {number}",
                    fix="Rename one of them",
                )
        elif len(row) == len(names):
            yield number, dict(zip(names, row, strict=True))
        elif row:
            reason = "not as many fields as the first row names"
            yield number, RejectedRow(line=number, reason=reason)


def _item_of(task: TaskData, row: dict[str, Any], line: int) -> TaskItem:
    try:
        return _item(task.description, row, line)
    except _AmbiguousError as error:
        raise DataError(str(error), where=f"{task.data}, line {line}", fix=_LABELS) from None


def _item(described: TaskDescription, row: dict[str, Any], line: int) -> TaskItem:
    context, answer, blank = "", "", -1
    choices: tuple[str, ...] = ()
    rights: tuple[int, ...] = ()
    accepted: tuple[str, ...] = ()
    instructions: tuple[Instruction, ...] = ()
    if described.kind in ("multiple_choice", "generation", "instructions"):
        context = _context(described, row)
    if described.is_choice:
        choices = _choices(described, row)
        rights = (0,) if described.kind == "minimal_pairs" else _rights(described, row, choices)
        answer = choices[rights[0]]
    elif described.kind == "generation":
        accepted = _answers(described, row)
        answer = accepted[0]
    elif described.kind == "instructions":
        answer = context
        instructions = _instructions(row)
    else:
        answer = _filled(described.text, row)
        if described.kind == "cloze":
            context, answer = _last_word(answer)
    if described.blank:
        blank = context.find(described.blank)
        if context.count(described.blank) != 1:
            raise RejectedError(f"{described.blank!r} does not occur once in the context")
        if not context[blank + len(described.blank) :].strip():
            raise RejectedError(f"nothing follows {described.blank!r}")
    if not answer.strip():
        raise RejectedError("empty text")
    if described.kind not in ("minimal_pairs", "perplexity") and not context.strip():
        raise RejectedError("empty context")
    return TaskItem(
        line=line,
        name=_label_text(row.get("id", row.get("task_id", ""))),
        context=context,
        choices=choices,
        rights=rights,
        answer=answer,
        accepted=accepted,
        blank=blank,
        groups=_groups(described, row),
        cluster=_label_text(row.get(described.cluster, "")) if described.cluster else "",
        instructions=instructions,
    )


def _context(described: TaskDescription, row: dict[str, Any]) -> str:
    """The question; a template with an empty field asks something else."""
    names = _FIELD.findall(described.context)
    empty = [name for name in names if not _text(row, name).strip()]
    if empty:
        whole = len(empty) == len(names)
        raise RejectedError("empty context" if whole else f"{empty[0]!r} is empty")
    return _filled(described.context, row)


def _last_word(text: str) -> tuple[str, str]:
    """A text in front of its last word, and the word; in scripts without blanks the last letter.

    The white space between the two belongs to the first.
    """
    text = text.rstrip()
    begin = max((index for index, letter in enumerate(text) if letter.isspace()), default=-1) + 1
    letters = [
        index
        for index, letter in enumerate(text[begin:], begin)
        if letter.isalnum() and script_of(letter) in WITHOUT_BLANKS
    ]
    begin = letters[-1] if letters else begin
    return text[:begin], text[begin:]


def _answers(described: TaskDescription, row: dict[str, Any]) -> tuple[str, ...]:
    """The right answers of a generation."""
    value = _value(row, described.answer)
    if isinstance(value, list):
        answers = tuple(_text({"answer": answer}, "answer") for answer in value)
    else:
        answers = (_text(row, described.answer),)
    if not answers or not all(answer.strip() for answer in answers):
        raise RejectedError("empty text")
    values = value if isinstance(value, list) else [value]
    if any(isinstance(entry, str) and _TEXT_OF_LIST.fullmatch(entry) for entry in values):
        raise RejectedError(f"{described.answer!r} is a text of a list, not a list")
    if described.match == "exact" and any(isinstance(entry, float) for entry in values):
        raise RejectedError(
            f"{described.answer!r} is a decimal number; write it as text, or set match: number"
        )
    if described.match == "number" and any(answer_number(answer) is None for answer in answers):
        raise RejectedError(f"{described.answer!r} is not a number")
    return answers


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
        listed = _value(row, wanted[0])
        if not isinstance(listed, list):
            raise RejectedError(f"{wanted[0]!r} is not a list")
        if not all(isinstance(choice, str) for choice in listed):
            raise RejectedError(f"{wanted[0]!r} contains something else than texts")
        choices = tuple(whole_text(choice) for choice in listed)
    else:
        choices = tuple(_filled(template, row) for template in wanted)
    if not 2 <= len(choices) <= MOST_CHOICES:
        raise RejectedError(f"fewer than 2 or more than {MOST_CHOICES} choices")
    if not all(choice.strip() for choice in choices):
        raise RejectedError("an empty choice")
    return choices


def _rights(
    described: TaskDescription, row: dict[str, Any], choices: tuple[str, ...]
) -> tuple[int, ...]:
    """The numbers of the right choices: several for the metric mc2 alone."""
    name = described.answer
    value = _value(row, name)
    if described.labels:
        return (_labelled(described, row, len(choices), value),)
    if isinstance(value, list) and len(value) == len(choices):
        rights = tuple(number for number, flag in enumerate(value) if flag == 1)
        several = described.metric == PROBABILITY
        if all(flag in (0, 1) for flag in value) and rights and (several or len(rights) == 1):
            if len(rights) == len(choices):
                raise RejectedError(f"{name!r} names every choice")
            return rights
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise RejectedError(f"{name!r} names no choice")
    text = str(value)
    if isinstance(value, str) and choices.count(text) > 1:
        raise RejectedError(f"{name!r} names two choices of one text")
    number = int(text) if re.fullmatch(r"-?[0-9]{1,4}", text) else None
    if isinstance(value, str) and re.fullmatch("[A-Za-z]", text):
        number = ord(text.upper()) - ord("A")
    # A number in JSON is not one of a list of texts.
    among = choices if isinstance(value, str) or len(described.choices) > 1 else ()
    if among.count(text) == 1:
        right = among.index(text)
        if number is not None and number != right and 0 <= number < len(choices):
            raise _AmbiguousError(
                f"{name!r} is the text of choice {right}, and the number or letter of another"
            )
        return (right,)
    if number is None:
        raise RejectedError(f"{name!r} names no choice")
    if number == len(choices) and not text.isalpha():
        raise _BehindLastError(f"{name!r} is out of range")
    if not 0 <= number < len(choices):
        raise RejectedError(f"{name!r} is out of range")
    return (number,)


def _labelled(described: TaskDescription, row: dict[str, Any], count: int, value: Any) -> int:
    """The number of the choice with this label; labels of the description are compared as texts."""
    labels: Any = [_filled(label, row) for label in described.labels]
    named = "labels"
    if len(labels) == 1:
        named = labels[0]
        labels = _value(row, named)
    else:
        value = str(value).lower() if isinstance(value, bool) else str(value)
    if not isinstance(labels, list) or labels.count(value) != 1 or len(labels) != count:
        raise RejectedError(f"{described.answer!r} is not one of {named!r}")
    return labels.index(value)


def _filled(template: str, row: dict[str, Any]) -> str:
    """The template with its fields; texts of fields are not templates themselves."""
    return _FIELD.sub(lambda match: _text(row, match.group(1)), template)


def _text(row: dict[str, Any], name: str) -> str:
    content = _value(row, name)
    if isinstance(content, bool) or not isinstance(content, str | int | float):
        raise RejectedError(f"{name!r} is neither text nor a number")
    if isinstance(content, float) and not math.isfinite(content):
        raise RejectedError(f"{name!r} is not a finite number")
    return whole_text(str(content))


def _value(row: dict[str, Any], name: str) -> Any:
    value: Any = row
    for key in (name,) if name in row else name.split("."):
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            raise RejectedError(f"no field {name!r}")
    return value


def _value_or_none(row: dict[str, Any], name: str) -> Any:
    try:
        return _value(row, name)
    except RejectedError:
        return None


def _label_text(value: object) -> str:
    return clean_field(str(value))[:_LONGEST_LABEL] if isinstance(value, str | int) else ""
