"""Replies of a judge on disk: an append-only JSONL file, by the SHA-256 of judge and question.

A second run asks nothing that is stored, and a killed run resumes. Every line has a hash of its
content ("check"), which is verified when the file is opened. The file holds no question, no key and
no address.

Checked  tests/unit/align/test_answer_store.py
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from stamm.align.judge.request import JudgeReply
from stamm.base.errors import DataError
from stamm.base.files import atomic, sha256_value
from stamm.base.json_text import parse_json

REPLIES = "requests.jsonl"
_SYNC_EVERY = 64
_SHOWN = 200


class AnswerStore:
    """The stored replies. Use with `with`.

    path       the file, created when it is missing
    earlier    files of earlier runs; a reply found there is copied into this one
    Raises     DataError for a damaged line, with its number
    """

    def __init__(self, path: Path, earlier: tuple[Path, ...] = ()) -> None:
        self._path = path
        self._earlier = {key: reply for each in earlier for key, reply, _ in _read(each)}
        self._replies: dict[str, JudgeReply] = {}
        end = 0
        if path.exists():
            for key, reply, after in _read(path):
                self._replies[key] = reply
                end = after
        self._file: BinaryIO = path.open("ab")
        # Behind it is a partial line of a killed process.
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
        found = self._replies.get(key)
        if found is None and (found := self._earlier.get(key)) is not None:
            self.add(key, found)
        return found

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
    """All replies of a file; [] when it is missing.

    Raises   as `AnswerStore`
    """
    return [reply for _, reply, _ in _read(path)] if path.exists() else []


def _row(key: str, reply: JudgeReply) -> dict[str, Any]:
    body = {"key": key, **dataclasses.asdict(reply), "text": reply.text[:_SHOWN]}
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
