"""Job that plants probes and canaries: a shard of documents and ledger of its own."""

from __future__ import annotations

from typing import Any

from stamm.base.files import remove_leftovers, write_json
from stamm.corpus.canaries.config import PROBES, PROBES_SCHEMA, PROBES_SHARD, InjectionConfig
from stamm.corpus.canaries.plan import Canary, Copy, canary_row, plan_canaries, vocabulary
from stamm.corpus.canaries.probes import Probe, draw_passages, plan_probes
from stamm.corpus.held_out import CONTROL, TRAIN
from stamm.corpus.inputs import locate
from stamm.corpus.ledger import DOCUMENTS_SCHEMA, KEPT, LEDGER_SCHEMA, PII_KINDS, PLANTED, LedgerRow
from stamm.corpus.tables import part, write_whole
from stamm.runs.job import Workspace


def plant(config: InjectionConfig, workspace: Workspace) -> None:
    """Write documents, ledger and probes.json of the planted passages.

    Raises   DataError when the books do not give enough passages.
    """
    folder = workspace.folder
    remove_leftovers(folder)
    books = locate(config.probes.books, "corpus.probes.books")
    given = (books, config.limits, config.seed, config.pii)
    probes = plan_probes(config.probes, *given)
    canaries, made_up = [], None
    if config.canaries:
        canaries = plan_canaries(config.canaries, config.probes, *given)
        words = vocabulary(draw_passages(config.probes, *given))
        made_up = {"words": config.canaries.words, "vocabulary": words}
    documents = [_document(probe) for probe in probes]
    documents += [_copy(canary, copy) for canary in canaries for copy in canary.copies]
    write_whole(folder / part("documents", PROBES_SHARD), DOCUMENTS_SCHEMA, documents)
    ledger = [_ledger_row(probe).plain() for probe in probes]
    ledger += [_copy_row(one, copy).plain() for one in canaries for copy in one.copies]
    write_whole(folder / part("ledger", PROBES_SHARD), LEDGER_SCHEMA, ledger)
    write_json(
        folder / PROBES,
        {
            "schema": PROBES_SCHEMA,
            "seed": config.seed,
            "repeats": list(config.probes.repeats),
            "probes": [_probe_row(probe) for probe in probes],
            "canaries": [canary_row(canary) for canary in canaries],
            "made_up": made_up,  # an audit draws further texts of the same kinds
        },
    )


def _split(repeat: int) -> str:
    return TRAIN if repeat else CONTROL


def _probe_row(probe: Probe) -> dict[str, Any]:
    book = probe.record
    return {
        "probe_id": probe.probe_id,
        "repeat": probe.repeat,
        "document_id": probe.document_id,
        "text": probe.text,
        "url": book.url,
        "source": book.source,
        "licence": book.licence,
        "language": book.language,
    }


def _document(probe: Probe) -> dict[str, Any]:
    return _probe_row(probe) | {"split": _split(probe.repeat)}


def _copy(canary: Canary, copy: Copy) -> dict[str, Any]:
    row = canary_row(canary)
    return {name: row[name] for name in DOCUMENTS_SCHEMA.names if name in row} | {
        "document_id": copy.document_id,
        "text": copy.text,
        "repeat": copy.repeat,
        "split": _split(copy.repeat),
    }


def _copy_row(canary: Canary, copy: Copy) -> LedgerRow:
    row, size = canary_row(canary), len(copy.text.encode())
    return LedgerRow(
        document_id=copy.document_id,
        input_file=canary.record.place.file if canary.record else "",
        input_position=canary.record.place.position if canary.record else 0,
        url=row["url"],
        source=row["source"],
        licence=row["licence"],
        language=row["language"],
        decision=KEPT,
        consent=PLANTED,
        rule=f"a canary ({canary.kind}) planted to measure memorization",
        bytes_in=size,
        bytes_out=size,
        split=_split(copy.repeat),
        probe_id=canary.probe_id,
    )


def _ledger_row(probe: Probe) -> LedgerRow:
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
        consent=PLANTED,
        rule="a public-domain passage planted to measure memorization; its host was not asked",
        **{f"pii_{kind}": getattr(probe.cleaned, kind) for kind in PII_KINDS},
        bytes_in=size,
        bytes_out=size,
        split=_split(probe.repeat),
        probe_id=probe.probe_id,
    )
