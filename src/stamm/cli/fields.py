"""`stamm fields FILE`: the fields of a data file, what they are read as, and how to map others."""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from stamm.align.data.examples import KIND_OF, Kind, RowOrigin, read_example
from stamm.base.config import override
from stamm.base.errors import DataError, visible
from stamm.base.files import has_ending
from stamm.cli.arg_types import add_changes, count, text
from stamm.cli.output import print_json, print_table
from stamm.corpus.documents import InputRecord, Place, UnreadableRecord
from stamm.corpus.inputs import JSONL, TABLE, is_table, locate
from stamm.corpus.limits import FIELDS, FieldNames, ReadLimits
from stamm.corpus.readers.jsonl import first_objects
from stamm.corpus.readers.rows import ADDRESS, LOOKS_LIKE_URL, FieldUse, record_of
from stamm.corpus.readers.table import first_table_rows

_EXAMPLE = 30
_PATH = 26
_DEEPEST = 3
_KINDS: dict[Kind, str] = {
    "chat": "align.sft",
    "preference": "align.dpo, align.simpo, align.rebel",
    "rated": "align.kto, align.qrpo",
}


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of the verb."""
    parser.add_argument(
        "file", type=text, metavar="FILE", help="JSON lines, a JSON array, Parquet or Arrow"
    )
    add_changes(parser, f"a map of the corpus reader to try: {', '.join(FIELDS)}=NAME")
    parser.add_argument(
        "--rows",
        type=count,
        default=100,
        metavar="N",
        help="rows that are looked at (default: 100)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Print the fields and the readers; 1 when no reader can use a row."""
    name, names = options.file, override(FieldNames(), options.changes)
    path = locate(name, "FILE")
    if not has_ending(path.name, (*JSONL, *TABLE)):
        raise DataError(
            f"{name} is not of a format whose fields are read",
            fix=f"Known: {', '.join((*JSONL, *TABLE))}",
        )
    unread: list[str] = []
    if is_table(path.name):
        rows: list[Any] = first_table_rows(path, options.rows)
    else:
        rows, unread = first_objects(path, ReadLimits(), options.rows)
    if not rows:
        why = f" ({unread[0]})" if unread else ""
        raise DataError(f"{name} has no row that can be read{why}", fix="Check its format")
    description = {**described(name, rows, names), "unread": unread}
    if options.json:
        print_json(description)
    else:
        _print(name, description)
    return 0 if any(reader["rows"] for reader in description["readers"]) else 1


def described(name: str, rows: list[Any], names: FieldNames) -> dict[str, Any]:
    """The fields of some rows and the readers that can use the rows, as JSON values."""
    records, taken = _read(name, rows, names)
    facts: dict[str, dict[str, Any]] = {}
    lengths: Counter[str] = Counter()
    for row in rows:
        for path, value in _leaves(row):
            field = facts.setdefault(path, {"field": path, "type": "", "rows": 0, "example": ""})
            field["rows"] += 1
            is_address = isinstance(value, str) and re.match(ADDRESS, value, re.IGNORECASE)
            if isinstance(value, str) and path not in taken and not is_address:
                lengths[path] += len(value)
            if not field["example"] and value not in ("", None):
                field["type"], field["example"] = _type(value), _shown(value)
            field["read as"] = taken.get(path, "").replace(LOOKS_LIKE_URL, "looks like an address")
    unread = [record for record in records if isinstance(record, UnreadableRecord)]
    corpus = {
        "reader": "corpus",
        "used by": "train.own, corpus.*",
        "rows": len(rows) - len(unread),
        "problem": f"{unread[0].reason}: {unread[0].detail}" if unread else "",
        "fix": _corpus_fix(name, rows, lengths, taken, names),
    }
    return {
        "file": name,
        "rows": len(rows),
        "fields": list(facts.values()),
        "readers": [corpus, *(_aligned(rows, kind) for kind in _KINDS)],
    }


def _aligned(rows: list[Any], kind: Kind) -> dict[str, Any]:
    """Counts the rows that alignment reads as `kind`, with the first reason against another row."""
    taken, problem = 0, ""
    for number, row in enumerate(rows, 1):
        try:
            example = read_example(row, RowOrigin(file="", row=number), kind=kind)
        except DataError as error:
            problem = problem or error.line().rstrip(".")
            continue
        is_kind = KIND_OF.get(type(example)) == kind
        taken += is_kind
        if not is_kind:
            other = KIND_OF.get(type(example), "a prompt alone")
            problem = problem or f"its columns are those of another kind: {other}"
    return {
        "reader": kind,
        "used by": _KINDS[kind],
        "rows": taken,
        "problem": problem,
        "fix": "Set prepare.fields.COLUMN=NAME for a column under another name" if problem else "",
    }


def _read(
    name: str, rows: list[Any], names: FieldNames
) -> tuple[list[InputRecord | UnreadableRecord], dict[str, str]]:
    """The records of rows, and the field of the corpus by the path that it was read from."""
    use = FieldUse()
    records = [
        record_of(Place(file=name, position=number), row, names, b"", use)
        for number, row in enumerate(rows, 1)
    ]
    return records, {path: field for field, paths in use.read.items() for path in paths}


def _corpus_fix(
    name: str,
    rows: list[Any],
    lengths: Mapping[str, int],
    taken: Mapping[str, str],
    names: FieldNames,
) -> str:
    """The settings that read the longest text, and what looks like an address; "" where both are read.

    lengths   characters of each field of text that is not read
    """
    settings = []
    if "text" not in taken.values() and lengths:
        best = max(lengths, key=lambda path: lengths[path])
        settings.append(f"corpus.fields.text={best}")
        _, taken = _read(name, rows, replace(names, text=best))
    like = [path for path, field in taken.items() if field == LOOKS_LIKE_URL]
    if like and "url" not in taken.values() and not names.url:  # of rows with a text
        settings.append(f"corpus.fields.url={like[0]}")
    return f"Set {' '.join(settings)}" if settings else ""


def _leaves(value: Any, above: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The fields of a row by path; lists and deep objects are whole."""
    if not isinstance(value, Mapping):
        if not above:
            yield "(no object)", value
        return
    for key, inner in value.items():
        path = f"{above}{key}"
        if isinstance(inner, Mapping) and inner and depth < _DEEPEST:
            yield from _leaves(inner, f"{path}.", depth + 1)
        else:
            yield path, inner


def _type(value: Any) -> str:
    if isinstance(value, str | bytes):
        return f"{'text' if isinstance(value, str) else 'bytes'} {len(value)}"
    if isinstance(value, list):
        return f"list {len(value)}"
    kinds = {bool: "boolean", dict: "object"}
    return kinds.get(
        type(value), "number" if isinstance(value, int | float) else type(value).__name__
    )


def _shown(value: Any) -> str:
    try:
        written = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        written = str(value)
    return _cut(visible(" ".join(written.split())), _EXAMPLE)


def _cut(written: str, length: int) -> str:
    return written if len(written) <= length else f"{written[: length - 1]}…"


def _print(name: str, description: Mapping[str, Any]) -> None:
    number = description["rows"]
    print(
        f"{visible(name, 200)}: {number:,} {'row' if number == 1 else 'rows'}, the first of the file\n"
    )
    if unread := description["unread"]:
        lines = "1 line is" if len(unread) == 1 else f"{len(unread):,} lines are"
        print(f"{lines} not read: {visible(unread[0], 200)}\n")
    cells = [
        [
            _cut(field["field"], _PATH),
            field["type"],
            str(field["rows"]),
            field["example"],
            field["read as"],
        ]
        for field in description["fields"]
    ]
    print_table(["field", "type", "rows", "example", "read as"], cells, wrap=True)
    for reader in description["readers"]:
        taken = f"{reader['rows']:,} of {number:,} rows" if reader["rows"] else "no row"
        print(f"\n{reader['reader']} ({reader['used by']}): {taken}")
        for line in filter(None, (reader["problem"], reader["fix"])):
            print(
                textwrap.fill(visible(line, 400), 78, initial_indent="  ", subsequent_indent="  ")
            )
