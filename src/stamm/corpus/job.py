"""The three corpus jobs: raw files to documents, documents to a vocabulary, both to token shards."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stamm.base.files import atomic, remove_leftovers, write_json
from stamm.corpus.archive import archived_robots
from stamm.corpus.config import CorpusConfig, PackConfig, TokenizerConfig
from stamm.corpus.consent import Consent, RobotsBook, read_snapshot
from stamm.corpus.held_out import CONTROL, TRAIN, HeldOut
from stamm.corpus.ledger import DOCUMENTS_SCHEMA, KEPT, LEDGER_SCHEMA, LedgerRow
from stamm.corpus.pack import write_packed
from stamm.corpus.probes import Probe, plan_probes
from stamm.corpus.read import check_kind, is_archive, read_input
from stamm.corpus.screen import Screen
from stamm.corpus.shipped import locate
from stamm.corpus.summary import SCHEMA, Tally
from stamm.corpus.tables import TableWriter, read_rows
from stamm.corpus.tokenizer import train_from_documents
from stamm.runs.job import Workspace

DOCUMENTS = "documents-00000.parquet"
LEDGER = "ledger-00000.parquet"
PROBES = "probes.json"
SUMMARY = "summary.json"
_PROGRESS_STEP = 50


def build_corpus(config: CorpusConfig, workspace: Workspace) -> None:
    """Write documents-00000.parquet, ledger-00000.parquet, probes.json and summary.json.

    Reads no inputs of the workspace. The same inputs and configuration give the same bytes.
    Raises   DataError when an input cannot be read as a whole, or when nothing is kept.
    """
    paths = [(name, locate(name, "corpus.inputs")) for name in config.inputs]
    for name, _ in paths:
        check_kind(name)
    answers = [
        answer
        for name in config.consent.robots
        for answer in read_snapshot(locate(name, "corpus.consent.robots"), config.limits)
    ]
    probes: list[Probe] = []
    if config.probes is not None:
        books = locate(config.probes.books, "corpus.probes.books")
        probes = plan_probes(config.probes, books, config.limits, config.seed, config.pii)
    folder = workspace.folder
    _clear(folder, [DOCUMENTS, LEDGER, PROBES, SUMMARY])
    spools = (folder / ".documents.part", folder / ".ledger.part")
    tally, held_out = Tally(), HeldOut(config.held_out, config.seed)
    try:
        _screen(config, workspace, paths, RobotsBook(answers), tally, held_out, spools)
        tally.require_kept()
        with (
            atomic(folder / DOCUMENTS) as path,
            TableWriter(path, DOCUMENTS_SCHEMA) as documents,
        ):
            for row in read_rows(spools[0]):
                split = held_out.split(row["document_id"], row["language"])
                documents.add({**row, "split": split})
                tally.add_split(split, len(row["text"].encode()))
            for probe in probes:
                documents.add(_probe_document(probe))
                tally.add_split(_probe_split(probe), len(probe.text.encode()))
        with atomic(folder / LEDGER) as path, TableWriter(path, LEDGER_SCHEMA) as ledger:
            for row in read_rows(spools[1]):
                if row["decision"] == KEPT:
                    row["split"] = held_out.split(row["document_id"], row["language"])
                ledger.add(row)
            for probe in probes:
                ledger.add(_probe_row(probe).plain())
    finally:
        for spool in spools:
            spool.unlink(missing_ok=True)
    write_json(folder / PROBES, _probes_file(config, probes))
    write_json(folder / SUMMARY, tally.plain(len(probes)))


def train_tokenizer(config: TokenizerConfig, workspace: Workspace) -> None:
    """Write tokenizer.json and summary.json, trained on the train split of inputs["corpus"]."""
    _clear(workspace.folder, ["tokenizer.json", SUMMARY])
    train_from_documents(config, workspace.inputs["corpus"] / DOCUMENTS, workspace)


def pack(config: PackConfig, workspace: Workspace) -> None:
    """Write token shards and manifest.json from inputs["corpus"] and inputs["tokenizer"]."""
    stale = [p.name for p in workspace.folder.glob("*-[0-9]*.*")]
    _clear(workspace.folder, ["manifest.json", *sorted(stale)])
    write_packed(
        config,
        workspace.inputs["corpus"] / DOCUMENTS,
        workspace.inputs["tokenizer"] / "tokenizer.json",
        workspace,
    )


def _clear(folder: Path, names: Iterable[str]) -> None:
    remove_leftovers(folder)
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _screen(
    config: CorpusConfig,
    workspace: Workspace,
    paths: list[tuple[str, Path]],
    snapshot: RobotsBook,
    tally: Tally,
    held_out: HeldOut,
    spools: tuple[Path, Path],
) -> None:
    screen = Screen(config)
    count = 0
    workspace.progress.begin("corpus", len(paths), "files")
    with (
        TableWriter(
            spools[0], DOCUMENTS_SCHEMA.remove(DOCUMENTS_SCHEMA.get_field_index("split"))
        ) as documents,
        TableWriter(spools[1], LEDGER_SCHEMA) as ledger,
    ):
        for index, (name, path) in enumerate(paths):
            books = [snapshot]
            if is_archive(name):
                books.append(RobotsBook(archived_robots(path, config.limits)))
            consent = Consent(config.consent, books)
            for record in read_input(name, path, config.limits):
                row, text = screen.judge(record, consent)
                tally.add(row)
                ledger.add(row.plain())
                if row.decision == KEPT:
                    held_out.see(row.document_id, row.language)
                    documents.add(_document(row, text))
                count += 1
                if count % _PROGRESS_STEP == 0:
                    workspace.progress.advance(index, f"{count} documents")
            workspace.progress.advance(index + 1, f"{count} documents")
    workspace.progress.end(f"{tally.rows[KEPT]} of {count} documents kept")


def _document(row: LedgerRow, text: str) -> dict[str, object]:
    return {
        "document_id": row.document_id,
        "text": text,
        "url": row.url,
        "source": row.source,
        "licence": row.licence,
        "language": row.language,
        "probe_id": None,
        "repeat": 1,
    }


def _probes_file(config: CorpusConfig, probes: list[Probe]) -> dict[str, Any]:
    """Every planted passage with its repeats; an empty list when none was planted."""
    return {
        "schema": SCHEMA,
        "seed": config.seed,
        "repeats": list(config.probes.repeats) if config.probes is not None else [],
        "probes": [
            {
                "probe_id": probe.probe_id,
                "repeat": probe.repeat,
                "document_id": probe.document_id,
                "text": probe.text,
                "url": probe.record.url,
                "source": probe.record.source,
                "licence": probe.record.licence,
                "language": probe.record.language,
            }
            for probe in probes
        ],
    }


def _probe_split(probe: Probe) -> str:
    return TRAIN if probe.repeat else CONTROL


def _probe_document(probe: Probe) -> dict[str, object]:
    book = probe.record
    return {
        "document_id": probe.document_id,
        "text": probe.text,
        "url": book.url,
        "source": book.source,
        "licence": book.licence,
        "language": book.language,
        "split": _probe_split(probe),
        "probe_id": probe.probe_id,
        "repeat": probe.repeat,
    }


def _probe_row(probe: Probe) -> LedgerRow:
    book, size = probe.record, len(probe.text.encode())
    return LedgerRow(
        document_id=probe.document_id,
        input_file=book.place.file,
        input_position=book.place.position,
        url=book.url,
        source=book.source,
        licence=book.licence,
        language=book.language,
        date=book.date,
        decision=KEPT,
        consent="planted",
        rule="a public-domain passage planted to measure memorization; its host was not asked",
        pii_email=probe.cleaned.email,
        pii_ip=probe.cleaned.ip,
        pii_iban=probe.cleaned.iban,
        bytes_in=size,
        bytes_out=size,
        split=_probe_split(probe),
        probe_id=probe.probe_id,
    )
