"""Small corpora written by hand: a ledger with its summary and manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stamm.base.files import write_json
from stamm.base.schema import write_record
from stamm.corpus.ledger import LedgerRow
from stamm.corpus.query import opened
from stamm.corpus.records import CorpusSummary
from stamm.corpus.summary import summarise
from stamm.corpus.tables import LEDGER_SCHEMA, part, parts, write_rows

KEPT: dict[str, Any] = {
    "decision": "kept", "split": "train", "language": "eng_Latn", "consent": "robots_allows",
    "robots_read": "2024-05-06", "source": "pages", "licence": "CC-BY-4.0", "bytes_out": 100,
    "bytes_in": 100, "host": "a.example", "date": "2024-03-01",
}  # fmt: skip


def kept(**facts: Any) -> dict[str, Any]:
    return KEPT | facts


def dropped(reason: str, **facts: Any) -> dict[str, Any]:
    return KEPT | {"decision": "dropped", "reason": reason, "split": "", "bytes_out": 0} | facts


def planted(**facts: Any) -> dict[str, Any]:
    return KEPT | {"consent": "planted", "host": "", "source": "probes", "date": ""} | facts


def write_corpus(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A corpus folder whose ledger has these rows, in two shards."""
    folder.mkdir(parents=True)
    made = [
        LedgerRow(document_id=f"{i:032x}", input_file="in.jsonl", input_position=i, **row).plain()
        for i, row in enumerate(rows)
    ]
    for number, some in enumerate((made[::2], made[1::2])):
        write_rows(folder / part("ledger", f"{number:05d}"), LEDGER_SCHEMA, some)
        manifest = {
            "schema": 1, "key": "", "in": len(some), "kept": 0, "dropped": {}, "facts": {},
            "outputs": {part("ledger", f"{number:05d}"): {"bytes": 1, "sha256": "ab" * 32}},
        }  # fmt: skip
        write_json(folder / "manifests" / f"{number:05d}.json", manifest)
    with opened(folder, 0.25, 1) as query:
        query.view("ledger", parts(folder, "ledger"))
        write_record(folder / "summary.json", CorpusSummary, summarise(query))
    return folder


def write_pack(folder: Path, tokens: int, **split: Any) -> Path:
    """The manifest of a packed corpus."""
    folder.mkdir(parents=True)
    train = {"tokens": tokens, "documents": 1, "tokens_by_language": {"eng_Latn": tokens}}
    write_json(folder / "manifest.json", {"schema": 2, "splits": {"train": train | split}})
    return folder
