"""Passages to audit: those planted in a corpus, or a user's own file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from stamm.audit.canaries import Drawing
from stamm.audit.memorization import Passage
from stamm.audit.records import PassageLine
from stamm.base.errors import DataError
from stamm.base.files import read_json
from stamm.base.json_text import parse_json
from stamm.base.receipts import check_file
from stamm.base.schema import LONGEST_LINE, decode
from stamm.base.units import bytes_text
from stamm.corpus.config import Kind

CORPUS_SCHEMA = 1
PROBES = "probes.json"
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Planted:
    """Passages and canaries planted in a corpus.

    passages    of books, control included, sorted by repeats and identifier
    canaries    by kind, in the corpus' order of kinds, sorted likewise
    drawing     how the made-up ones were drawn; None if not recorded
    withdrawn   probes and canaries that a replay removed, which are not measured
    """

    passages: list[Passage]
    canaries: Mapping[Kind, list[Passage]]
    drawing: Drawing | None
    withdrawn: int


def read_planted(corpus: Path) -> Planted:
    """The passages and canaries planted in a corpus.

    Raises   DataError when it has no passages, or its list of them is malformed.
    """
    path = corpus / PROBES
    stored = read_json(path)
    try:
        if stored["schema"] != CORPUS_SCHEMA:
            raise DataError(
                f"{path} has schema {stored['schema']!r}, this audit reads {CORPUS_SCHEMA}",
                fix="Run the corpus step again with this version",
            )
        canaries: dict[Kind, list[Passage]] = {}
        for row in stored.get("canaries", []):
            canaries.setdefault(_kind(row["kind"]), []).append(_passage(row))
        made_up = stored.get("made_up")
        planted = Planted(
            passages=_sorted(map(_passage, stored["probes"])),
            canaries={kind: _sorted(group) for kind, group in canaries.items()},
            drawing=None
            if made_up is None
            else Drawing(
                seed=int(stored["seed"]),
                words=int(made_up["words"]),
                vocabulary=tuple(made_up["vocabulary"]),
            ),
            withdrawn=len(stored.get("withdrawn", [])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path} is not a list of planted passages: {type(error).__name__}: {error}",
            fix="Run the corpus step again",
        ) from None
    if not planted.passages:
        gone = f" ({planted.withdrawn} were withdrawn)" if planted.withdrawn else ""
        raise DataError(
            f"{path} lists no planted passage{gone}: there is nothing to audit",
            fix="Set corpus.probes=ProbesConfig, or run without audit",
        )
    return planted


def read_own(path: Path) -> Planted:
    """The passages of a user's JSONL file, one `PassageLine` each.

    Raises   DataError with the line for one that is not such a passage, and for a file without any.
    """
    passages: dict[str, Passage] = {}
    for number, line in read_own_lines(PassageLine, path, "a passage: text, repeats"):
        name = line.probe_id or f"line-{number:06d}"
        if name in passages:
            raise DataError(f"{path}, line {number}: {name!r} is there twice")
        passages[name] = Passage(
            probe_id=name,
            repeats=line.repeats,
            text=line.text,
            language=line.language,
            group=line.group,
        )
    return Planted(passages=_sorted(passages.values()), canaries={}, drawing=None, withdrawn=0)


def read_own_lines(kind: type[S], path: Path, wanted: str) -> list[tuple[int, S]]:
    """The lines of a user's JSONL file with their numbers, the last one also without an end of line.

    wanted   what each line should be, for the advice of errors

    Raises   DataError with the line for one that does not follow the schema or is over 4 MiB, and for
             a file without any.
    """
    lines: list[tuple[int, S]] = []
    fix = f"Let each line be {wanted}; see docs/audit.md"
    check_file(path)
    try:
        with path.open("rb") as opened:
            number = 0
            while line := opened.readline(LONGEST_LINE + 1):
                number += 1
                where = f"{path}, line {number}"
                if len(line) > LONGEST_LINE:
                    raise DataError(f"{where} is over {bytes_text(LONGEST_LINE)}")
                if line.strip():
                    lines.append((number, _own_line(kind, line, where, fix)))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if not lines:
        raise DataError(f"{path} is empty", fix=fix)
    return lines


def _own_line(kind: type[S], line: bytes, where: str, fix: str) -> S:
    try:
        plain = parse_json(line)
        json.dumps(plain, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DataError(f"{where} has a lone surrogate, half of a character") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}", fix=fix) from None
    try:
        decoded: S = decode(kind, plain, where)
    except DataError as error:
        raise DataError(error.what, fix=fix) from None
    return decoded


def _passage(row: Any) -> Passage:
    name, repeats, text = row["probe_id"], row["repeat"], row["text"]
    if not (isinstance(name, str) and isinstance(repeats, int) and isinstance(text, str)):
        raise TypeError("probe_id and text must be strings, repeat an integer")
    return Passage(probe_id=name, repeats=repeats, text=text, language=row.get("language") or "")


def _kind(name: str) -> Kind:
    if name not in get_args(Kind):
        raise ValueError(f"{name!r} is not a kind of canary")
    kind: Kind = name  # type: ignore[assignment]  # checked above
    return kind


def _sorted(passages: Any) -> list[Passage]:
    return sorted(passages, key=lambda passage: (passage.repeats, passage.probe_id))
