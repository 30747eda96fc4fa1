"""The documents to forget in a packed corpus, documents like them, and passages of them for the audit."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stamm.base.files import json_line, write_text
from stamm.corpus.dedup.cluster import find_clusters, keys_row, keys_schema
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.dedup.shingles import hash_words, minhash, text_key
from stamm.corpus.deletions import Deletions
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.tables import columns, read_rows, write_rows
from stamm.pretrain.forget.records import NEAR
from stamm.runs.run_sharded import cores
from stamm.tokenizer.tokenizer import Tokenizer

FORGOTTEN_SCHEMA = columns("document_id url language request start:int64 stop:int64")
"""One row per occurrence of a forgotten document: tokens start .. stop - 1 of the train split."""
_KEYS = "document_id url language start:int64 stop:int64"


def forgotten_rows(
    split: PackedSplit, deletions: Deletions, duplicates: Mapping[str, Mapping[str, str]]
) -> Iterator[dict[str, Any]]:
    """Rows of FORGOTTEN_SCHEMA, and the `key` of the request, in the order of the corpus.

    duplicates   key and rule of a request by the document that was kept for the requested one
    """
    for row in _documents(split):
        keys = deletions.keys(row["url"] or "", row["document_id"])
        if keys:
            yield {**row, "key": keys[0], "request": deletions.rule(keys[0])}
        elif (duplicate := duplicates.get(row["document_id"])) is not None:
            yield {**row, "key": duplicate["key"], "request": duplicate["rule"]}


def write_near_duplicates(
    split: PackedSplit, tokenizer: Tokenizer, forgotten: set[str], config: DedupConfig, folder: Path
) -> int:
    """Write the documents in a cluster with a forgotten one as requests; their number.

    Each line is a document_id behind a comment that names its URL and the forgotten document.
    """
    scratch = folder / ".near.part"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    urls: dict[str, str] = {}

    def rows() -> Iterator[dict[str, Any]]:
        for number, row in enumerate(_documents(split)):
            if row["document_id"] in urls:
                continue
            urls[row["document_id"]] = row["url"] or ""
            text = _text(split, tokenizer, row)
            yield keys_row(
                shard=0,
                row=number,
                document_id=row["document_id"],
                text_hash=hashlib.sha256(text.encode()).digest()[:16],
                key=text_key(text),
                signature=minhash(hash_words(text), config),
            )

    try:
        write_rows(scratch / "keys.parquet", keys_schema(config), rows())
        clusters = scratch / "clusters.parquet"
        find_clusters(
            config, [scratch / "keys.parquet"], clusters, scratch=scratch, threads=cores()
        )
        members: dict[str, list[str]] = {}
        for row in read_rows(clusters, ["document_id", "kept_id"]):
            members.setdefault(row["kept_id"], []).append(row["document_id"])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    lines, count = ["# Documents like a forgotten one, as deletion requests"], 0
    for _, cluster in sorted(members.items()):
        like = min(set(cluster) & forgotten, default="")
        for name in sorted(set(cluster) - forgotten) if like else ():
            url = "".join(c for c in urls[name] if c.isprintable())[:400]
            lines += [f"# like {like}: {url}", name]
            count += 1
    write_text(folder / NEAR, "\n".join(lines) + "\n")
    return count


def write_passages(
    split: PackedSplit,
    held_out: PackedSplit,
    tokenizer: Tokenizer,
    forgotten: Iterable[Mapping[str, Any]],
    deletions: Deletions,
    path: Path,
    *,
    count: int,
    tokens: int,
) -> tuple[int, int]:
    """Write passages for the audit: beginnings of forgotten documents, and of held-out ones, never read.

    count    of each kind, at most, chosen by the hash of their identifiers
    tokens   that a passage must have; 0: none are written
    Returns  the numbers of both kinds
    """
    repeats: dict[str, int] = {}
    for row in forgotten:
        repeats[row["document_id"]] = repeats.get(row["document_id"], 0) + 1
    never = [
        row
        for row in _documents(held_out)
        if tokens and not deletions.keys(row["url"] or "", row["document_id"])
    ]
    lines: list[str] = []
    counts = []
    for source, rows in ((split, forgotten), (held_out, never)):
        long = {
            row["document_id"]: row
            for row in rows
            if tokens and row["stop"] - row["start"] - 2 >= tokens
        }
        names = sorted(long, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:count]
        counts.append(len(names))
        for name in names:
            row = long[name]
            # Encoded again, a text may have other tokens at its end.
            text = _text(source, tokenizer, row, 2 * tokens)
            line = {"text": text, "language": row["language"] or "", "probe_id": name}
            lines.append(json_line({**line, "repeats": repeats.get(name, 0)}))
    write_text(path, "".join(lines))
    return counts[0], counts[1]


def _documents(split: PackedSplit) -> Iterator[dict[str, Any]]:
    for table in split.sidecars([name.partition(":")[0] for name in _KEYS.split()]):
        yield from table.to_pylist()


def _text(
    split: PackedSplit, tokenizer: Tokenizer, row: Mapping[str, Any], most: int | None = None
) -> str:
    """The text of a packed document, or of its first tokens, without <s> and </s>."""
    first, last = row["start"] + 1, row["stop"] - 1
    stop = last if most is None else min(first + most, last)
    return tokenizer.decode(split.read(first, max(first, stop)).tolist())
