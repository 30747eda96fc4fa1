"""Documents in a fixed order as token shards, with a manifest that says whose each token is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.base.files import atomic, read_json, sha256_file, write_json
from stamm.corpus.config import PackConfig
from stamm.corpus.held_out import HELD_OUT, TRAIN
from stamm.corpus.shards import Shard, open_shard, token_type, type_code, write_shard
from stamm.corpus.tables import read_rows, read_table, write_rows
from stamm.corpus.tokenizer import Tokenizer
from stamm.runs.job import Workspace

SCHEMA = 1
MANIFEST = "manifest.json"
ORDER_RULE = (
    "Each document stands `repeat` times in its split, and every occurrence is a document of its "
    "own. Occurrences are sorted by SHA-256 of the text 'pack {seed} {document_id} {occurrence}', "
    "occurrence counting from 0; each is <s>, its tokens, </s>. A shard ends with the document "
    "that brings it to shard_tokens."
)
SIDECAR_SCHEMA = pa.schema(
    [
        ("document_id", pa.string()),
        ("language", pa.string()),
        ("source", pa.string()),
        ("licence", pa.string()),
        ("url", pa.string()),
        ("probe_id", pa.string()),
        ("occurrence", pa.int64()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
"""One row per packed document: tokens start .. stop - 1 of its split, and bytes of its text."""

_COPIED = ("document_id", "language", "source", "licence", "url", "probe_id")


@dataclass(frozen=True)
class _Occurrence:
    key: bytes
    row: dict[str, Any]
    tokens: NDArray[np.integer[Any]]
    occurrence: int


def write_packed(
    config: PackConfig, documents: Path, tokenizer_file: Path, workspace: Workspace
) -> None:
    """Write the shards of both splits, their sidecars, and manifest.json last.

    Raises   DataError when the train split is empty.
    """
    tokenizer = Tokenizer.load(tokenizer_file)
    code = type_code(tokenizer.size)
    workspace.progress.begin("pack", 2, "splits")
    splits = {}
    for position, split in enumerate((TRAIN, HELD_OUT)):
        occurrences = _ordered(config, documents, tokenizer, split)
        if split == TRAIN and not occurrences:
            raise DataError(f"{documents} holds no document to train on", fix="Build the corpus")
        splits[split] = _write_split(config, workspace.folder, split, occurrences, code)
        workspace.progress.advance(position + 1, f"{splits[split]['tokens']} tokens")
    write_json(
        workspace.folder / MANIFEST,
        {
            "schema": SCHEMA,
            "tokenizer_sha256": tokenizer.sha256,
            "vocabulary": tokenizer.size,
            "token_type": "uint16" if code == 8 else "int32",
            "seed": config.seed,
            "order": ORDER_RULE,
            "splits": splits,
        },
    )
    workspace.progress.end(f"{splits[TRAIN]['tokens']} tokens to train on")


class PackedSplit:
    """One split of a packed corpus, read as a single stream of tokens.

    num_tokens   tokens of all its shards
    """

    def __init__(self, folder: Path, split: str, entry: dict[str, Any]) -> None:
        self._folder = folder
        self._entries: list[dict[str, Any]] = entry["shards"]
        self._shards: list[Shard] = []
        for shard in self._entries:
            opened = open_shard(folder / shard["name"])
            if len(opened.tokens) != shard["tokens"]:
                raise DataError(
                    f"{folder / shard['name']} holds {len(opened.tokens)} tokens, "
                    f"the manifest says {shard['tokens']}",
                    fix="Delete the packed corpus and pack again",
                )
            self._shards.append(opened)
        self.split = split
        self._borders = np.cumsum([0, *(len(s.tokens) for s in self._shards)])
        self.num_tokens = int(self._borders[-1])

    @classmethod
    def open(cls, folder: Path, split: str) -> PackedSplit:
        """The split "train" or "held_out" of the packed corpus in `folder`.

        Raises   DataError when it is not there, was written by another version, or a shard is
                 cut short. Content is checked by `verify`.
        """
        manifest = read_json(folder / MANIFEST)
        if not isinstance(manifest, dict):
            raise DataError(
                f"{folder / MANIFEST} is no manifest of a packed corpus",
                fix="Pack the corpus again",
            )
        if manifest.get("schema") != SCHEMA:
            raise DataError(
                f"{folder / MANIFEST} has schema {manifest.get('schema')!r}, not {SCHEMA}",
                fix="Pack the corpus again with this version",
            )
        splits = manifest.get("splits")
        if not isinstance(splits, dict):
            raise DataError(f"{folder / MANIFEST} names no splits", fix="Pack the corpus again")
        if split not in splits:
            raise DataError(f"{folder} has no split {split!r}", fix=f"Known: {', '.join(splits)}")
        if not _is_split(splits[split]):
            raise DataError(
                f"{folder / MANIFEST} does not list the shards of {split!r} with name, tokens and "
                "sha256",
                fix="Pack the corpus again",
            )
        return cls(folder, split, splits[split])

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens start .. stop - 1 of the split, across shards.

        Shapes   [stop - start], int64.
        Raises   DataError when the range leaves the split.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise DataError(
                f"tokens {start} to {stop} are not in {self.split}, which has {self.num_tokens}"
            )
        result = np.empty(stop - start, dtype=np.int64)
        at = start
        shard = int(np.searchsorted(self._borders, start, side="right")) - 1
        while at < stop:
            first, last = int(self._borders[shard]), int(self._borders[shard + 1])
            end = min(stop, last)
            result[at - start : end - start] = self._shards[shard].tokens[at - first : end - first]
            at, shard = end, shard + 1
        return result

    def documents(self) -> pa.Table:
        """One row per packed document, in order: SIDECAR_SCHEMA."""
        names = [f"{entry['name']}.documents.parquet" for entry in self._entries]
        if not names:
            return SIDECAR_SCHEMA.empty_table()
        return pa.concat_tables([read_table(self._folder / name) for name in names])

    def verify(self) -> None:
        """Compare every file of the split with its hash in the manifest.

        Raises   DataError naming the first file that differs.
        """
        for entry in self._entries:
            for suffix, expected in entry["sha256"].items():
                path = self._folder / f"{entry['name']}{suffix}"
                if not path.is_file():
                    raise DataError(f"{path} does not exist", fix="Pack the corpus again")
                if sha256_file(path) != expected:
                    raise DataError(
                        f"{path} was altered: its hash is not the one in the manifest",
                        fix="Delete the packed corpus and pack again",
                    )


def _is_split(entry: object) -> bool:
    shards = entry.get("shards") if isinstance(entry, dict) else None
    return isinstance(shards, list) and all(
        isinstance(shard, dict)
        and isinstance(shard.get("name"), str)
        and isinstance(shard.get("tokens"), int)
        and isinstance(shard.get("sha256"), dict)
        for shard in shards
    )


def _ordered(
    config: PackConfig, documents: Path, tokenizer: Tokenizer, split: str
) -> list[_Occurrence]:
    kind = token_type(type_code(tokenizer.size))
    wanted = (row for row in read_rows(documents) if row["split"] == split)
    found = []
    for row, ids in tokenizer.encode_rows(wanted):
        tokens: NDArray[np.integer[Any]] = np.array(ids, dtype=kind)
        facts = {key: row[key] for key in _COPIED} | {"bytes": len(row["text"].encode())}
        for occurrence in range(row["repeat"]):
            name = f"pack {config.seed} {row['document_id']} {occurrence}"
            key = hashlib.sha256(name.encode()).digest()
            found.append(_Occurrence(key, facts, tokens, occurrence))
    return sorted(found, key=lambda item: item.key)


def _write_split(
    config: PackConfig, folder: Path, split: str, occurrences: list[_Occurrence], code: int
) -> dict[str, Any]:
    shards, start = [], 0
    languages: dict[str, int] = {}
    for number, group in enumerate(_shard_groups(occurrences, config.shard_tokens)):
        name = f"{split}-{number:05d}"
        write_shard(folder / name, (item.tokens for item in group), code)
        rows = []
        for item in group:
            stop = start + len(item.tokens)
            place = {"occurrence": item.occurrence, "start": start, "stop": stop}
            rows.append({**item.row, **place})
            start = stop
            language = item.row["language"]
            languages[language] = languages.get(language, 0) + len(item.tokens)
        sidecar = folder / f"{name}.documents.parquet"
        with atomic(sidecar) as path:
            write_rows(path, SIDECAR_SCHEMA, rows)
        suffixes = (".bin", ".idx", ".documents.parquet")
        shards.append(
            {
                "name": name,
                "tokens": sum(len(item.tokens) for item in group),
                "documents": len(group),
                "sha256": {suffix: sha256_file(folder / f"{name}{suffix}") for suffix in suffixes},
            }
        )
    return {
        "tokens": start,
        "documents": len(occurrences),
        "tokens_by_language": dict(sorted(languages.items(), key=lambda item: (-item[1], item[0]))),
        "shards": shards,
    }


def _shard_groups(occurrences: list[_Occurrence], limit: int) -> Iterator[list[_Occurrence]]:
    group: list[_Occurrence] = []
    size = 0
    for item in occurrences:
        group.append(item)
        size += len(item.tokens)
        if size >= limit:
            yield group
            group, size = [], 0
    if group:
        yield group
