"""The files of a run folder that a release copies, and the ledger without documents that were dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from stamm.base.receipts import check_present
from stamm.corpus.ledger import KEPT, LATER_COLUMNS
from stamm.corpus.tables import LEDGER_SCHEMA, columns, parts, read_rows, write_rows
from stamm.pretrain.forget.records import DOCUMENTS
from stamm.release.config import ReleaseConfig
from stamm.release.facts import ReleaseFacts
from stamm.release.layout import (
    CARD,
    EVIDENCE,
    RUN,
    TOP_FORMAT,
    arm_folder,
    export_folder,
)
from stamm.runs.arms import prepared_data_of_arm

# Paths on the machine that read the inputs.
_NOT_PUBLISHED = ("input_file", "input_position", "path")
_OF_ARM = (
    "config.json", "manifest.json", "metrics.jsonl", "summary.json", "events.json", "import.json",
    "model/*", "adapter/*", "evaluate/*", "answers/*.json",
    # Numbers alone: other files have the texts of planted passages and canaries.
    "audit/*.json", "audit/*_scores.jsonl", "audit/grid_points.jsonl",
)  # fmt: skip
_OF_RUN = (
    "config.json", "manifest.json", "report.html", "activations/*/*.json", "forget/forget.json",
)  # fmt: skip
_FORGOTTEN_SCHEMA = columns("document_id start:int64 stop:int64")
_OF_TOKENIZER = ("*.json", "*.jinja")
_OF_PACK = ("manifest.json", "order-*.parquet", "manifests/*.json")
_OF_CORPUS = ("summary.json", "manifests/*.json")


def copied_files(config: ReleaseConfig, facts: ReleaseFacts) -> dict[str, Path]:
    """The file that each name in the release is a copy of."""
    sources: dict[str, Path] = {}
    for target, folder in facts.exports.items():
        at_top = target == TOP_FORMAT
        for path in _files(folder, ("**/*",)):
            name = path.relative_to(folder).as_posix()
            if not (at_top and name == CARD):
                sources[f"{export_folder(target)}{name}"] = path
    of_arm = (*_OF_ARM, "checkpoints/**/*") if config.checkpoints else _OF_ARM
    trees: tuple[tuple[Path | None, tuple[str, ...], str], ...] = (
        (facts.root, _OF_RUN if facts.root != facts.arm else (), RUN),
        (facts.arm, of_arm, arm_folder(facts.record.arm)),
        (facts.tokenizer, _OF_TOKENIZER, f"{RUN}/tokenizer"),
        (facts.pack, _OF_PACK, f"{RUN}/pack"),
        (facts.corpus, _OF_CORPUS, f"{RUN}/corpus"),
    )
    for tree, patterns, target_folder in trees:
        if tree is not None:
            for path in _files(tree, patterns):
                sources[f"{target_folder}/{path.relative_to(tree).as_posix()}"] = path
    for number, folder in enumerate(prepared_data_of_arm(facts.arm), 1):
        sources[f"{EVIDENCE}/alignment-{number}.json"] = folder / "summary.json"
    return sources


def _files(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        check_present(folder, pattern)
        for path in sorted(folder.glob(pattern)):
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if path.is_file() and not hidden:
                yield path


def write_kept_ledger(facts: ReleaseFacts, folder: Path) -> list[tuple[str, str, int, int]]:
    """Write documents/ledger-*.parquet below `folder`: the rows of kept documents.

    Dropped documents are counted in the corpus' summary; their addresses are not published again.
    Nor are paths of the machine that read the inputs.

    Returns  (source, licence, documents, bytes) of the kept documents, largest first; untrusted
    """
    counts: dict[tuple[str, str], list[int]] = {}

    def kept(path: Path) -> Iterator[dict[str, Any]]:
        for row in read_rows(path, schema.names):
            if row["decision"] == KEPT:
                count = counts.setdefault((row["source"], row["licence"]), [0, 0])
                count[0] += 1
                count[1] += row["bytes_out"]
                yield LATER_COLUMNS | row

    schema = pa.schema([field for field in LEDGER_SCHEMA if field.name not in _NOT_PUBLISHED])
    for path in [] if facts.corpus is None else parts(facts.corpus, "ledger"):
        write_rows(folder / EVIDENCE / path.name, schema, kept(path))
    rows = [(*key, documents, size) for key, (documents, size) in counts.items()]
    return sorted(rows, key=lambda row: (-row[3], row))


def write_forgotten(facts: ReleaseFacts, folder: Path) -> None:
    """Write which documents of the training order a run forgot, where it did; not who asked for it."""
    path, released = facts.root / "forget" / DOCUMENTS, folder / RUN / "forget"
    if path.is_file():
        released.mkdir(parents=True)
        rows = read_rows(path, _FORGOTTEN_SCHEMA.names)
        write_rows(released / DOCUMENTS, _FORGOTTEN_SCHEMA, rows)
