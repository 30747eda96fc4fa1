"""Deep verification: what a release derives from its weights and records, derived again and compared.

    exported weights    every file of every export, from run/arms/ARM/model, with the writer that made it
    tables of the card  training, from run/arms/ARM/summary.json
    licence summary     the data components of bom.cdx.json, from the released ledger
    ledger              documents and bytes by language against run/corpus/summary.json; a row for every
                        document of the training order, which has the order of its rule
    tokenizer           its hash against that of the packed corpus
    receipts            the programs that check them, from receipts.json

Not derived again, because it needs what a release does not hold (texts of the corpus, dropped rows of the
ledger, times): results of evaluation, audit and parity, samples, the data card and the summary of training content.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from stamm.base.errors import DataError, StammError
from stamm.base.files import read_json, sha256_bytes
from stamm.base.schema import read_record, read_record_if_present
from stamm.corpus.ledger import PLANTED, TRAIN
from stamm.corpus.records import CorpusSummary, PackManifest
from stamm.corpus.tables import read_parts, read_table
from stamm.export.gguf_reader import GgufReader
from stamm.export.records import ParityFile
from stamm.export.registry import TARGETS, load_target
from stamm.export.target import ChatTarget, ExportOptions, OptionsTarget
from stamm.models.decoder import Decoder
from stamm.models.serialization import load_decoder
from stamm.pretrain.records import TrainingSummary
from stamm.release.bom import corpus_components
from stamm.release.card import training_table
from stamm.release.consent_receipt import CHECKS, checking_program
from stamm.release.file_difference import difference, safetensors_tensors
from stamm.release.layout import (
    BOM,
    CARD,
    EVIDENCE,
    PARITY,
    RECEIPTS,
    RECORD,
    RUN,
    arm_folder,
    export_folder,
)
from stamm.release.records import Problem, ReceiptsFile, ReleaseFile
from stamm.runs.model_outputs import HEAD, read_chat_record
from stamm.version import VERSION

_NOT_DERIVED = {CARD, PARITY, "samples.json"}
_TOKENIZER = Path(RUN) / "tokenizer" / "tokenizer.json"


def derived_problems(folder: Path, done: Callable[[str], None]) -> Iterator[Problem]:
    """Files of a release that are not what its weights and records give.

    done   is called with the name of every file that was compared, and with a sentence for each that
           cannot be derived again

    Raises   DataError when release.json cannot be read
    """
    record = read_record(ReleaseFile, folder / RECORD)
    checks = (("export/", _formats), (CARD, _card), (RUN, _corpus), (EVIDENCE, _receipts))
    for where, check in checks:
        try:
            yield from check(folder, record, done)
        except DataError as error:
            yield Problem(file=where, what=f"cannot be derived again: {error.what}")


def _receipts(folder: Path, record: ReleaseFile, done: Callable[[str], None]) -> Iterator[Problem]:
    """The programs that check receipts, of which a changed one could accept anything."""
    receipts = read_record_if_present(ReceiptsFile, folder / RECEIPTS)
    for name, template in CHECKS.items():
        if receipts is None:
            break
        path = folder / EVIDENCE / name
        done(f"{EVIDENCE}/{name}")
        if not path.is_file() or path.read_text("utf-8") != checking_program(template, receipts):
            yield Problem(file=f"{EVIDENCE}/{name}", what=f"is not the program for {RECEIPTS}")


def _formats(folder: Path, record: ReleaseFile, done: Callable[[str], None]) -> Iterator[Problem]:
    model = folder / arm_folder(record.arm) / "model"
    if (model / HEAD).is_file():
        done("exports of a reward model are not derived again")
        return
    try:
        decoder = load_decoder(model, mapped=True).merged()
    except StammError as error:
        where = f"{arm_folder(record.arm)}/model"
        yield Problem(file=where, what=f"cannot be loaded: {error.what}")
        return
    other = f" by stamm {VERSION}, and {record.version} wrote it" * (record.version != VERSION)
    for name in record.formats:
        prefix = export_folder(name)
        if name.partition("_")[0] not in TARGETS:
            done(f"{name} is written by code of the publisher's own: it is not derived again")
            continue
        listed = set(read_record(ParityFile, folder / prefix / PARITY).sha256) - _NOT_DERIVED
        with tempfile.TemporaryDirectory() as scratch:
            written = Path(scratch)
            try:
                _write(written, folder, name, decoder, model)
            except (StammError, OSError) as error:
                yield Problem(file=prefix or name, what=f"cannot be derived again: {error}")
                continue
            files = {p.relative_to(written).as_posix() for p in written.rglob("*") if p.is_file()}
            for file in sorted(files | listed):
                done(f"{prefix}{file}")
                what = difference(folder / prefix / file, written / file)
                if what:
                    shown = f"is not what the weights give{other}: {what}"
                    yield Problem(file=f"{prefix}{file}", what=shown)


def _write(scratch: Path, folder: Path, name: str, decoder: Decoder, model: Path) -> None:
    """Write one export again, with the choices that the released files show."""
    kind, _, types = name.partition("_")
    released, tokenizer = folder / export_folder(name), folder / _TOKENIZER
    target, chat = load_target(kind), read_chat_record(model)
    if isinstance(target, OptionsTarget):
        options = ExportOptions(
            quantization=types.upper() or "F32", chat_format=chat.format if chat else ""
        )
        shards = [safetensors_tensors(path) for path in released.glob("model-*.safetensors")]
        if shards:  # this limit gives the same shards: others would exceed the true one, too
            sizes = [sum(stop - start for start, stop in s.values()) for s in shards if len(s) > 1]
            options = replace(options, max_shard_bytes=max(sizes, default=1))
        for path in released.glob("*.gguf"):  # the rule was chosen by held-out text
            rule = str(GgufReader(path).metadata.get("tokenizer.ggml.pre", ""))
            options = replace(options, pre_tokenizer=rule)
        target.configure(options)
    target.write(scratch, decoder, tokenizer)
    imported = (tokenizer.parent / "tokenizer_config.json").is_file()
    if (chat is not None or imported) and isinstance(target, ChatTarget):
        target.write_chat(scratch, tokenizer, decoder.config.max_context)


def _card(folder: Path, record: ReleaseFile, done: Callable[[str], None]) -> Iterator[Problem]:
    """The training table of the card, line by line; its times are in no record of the release."""
    path = folder / arm_folder(record.arm) / "summary.json"
    summary = read_record_if_present(TrainingSummary, path)
    if summary is None:
        return
    done(CARD)
    lines = set((folder / CARD).read_text("utf-8", errors="replace").splitlines())
    for line in training_table(record, summary, None).splitlines():
        if line not in lines:
            yield Problem(file=CARD, what=f"does not state what {path.name} records: {line[:160]}")


def _corpus(folder: Path, record: ReleaseFile, done: Callable[[str], None]) -> Iterator[Problem]:
    """Tokenizer, ledger, order and licence summary against one another."""
    pack = folder / RUN / "pack"
    manifest = read_record_if_present(PackManifest, pack / "manifest.json")
    if manifest is not None and manifest.tokenizer_sha256:
        done(_TOKENIZER.as_posix())
        if manifest.tokenizer_sha256 != record.tokenizer_sha256:
            yield Problem(
                file=_TOKENIZER.as_posix(),
                what="is not the tokenizer of the packed corpus: "
                f"{record.tokenizer_sha256[:16]}, and {manifest.tokenizer_sha256[:16]} packed it",
            )
    summary = read_record_if_present(CorpusSummary, folder / RUN / "corpus" / "summary.json")
    if summary is None:
        return
    documents: set[str] = set()
    languages: Counter[tuple[str, str]] = Counter()
    sources: Counter[tuple[str, str, str]] = Counter()
    for row in read_parts(folder / EVIDENCE, "ledger"):
        documents.add(row["document_id"])
        for kind, count in (("documents", 1), ("bytes", row["bytes_out"])):
            sources[row["source"], row["licence"], kind] += count
            if row["consent"] != PLANTED:
                languages[row["language"], kind] += count
    ledger = f"{EVIDENCE}/ledger-*.parquet"
    done(ledger)
    for language in sorted(summary.kept_by_language.keys() | {name for name, _ in languages}):
        total = summary.kept_by_language.get(language)
        stated = (total.documents, total.bytes) if total else (0, 0)
        counted = (languages[language, "documents"], languages[language, "bytes"])
        if stated != counted:
            yield Problem(
                file=ledger,
                what=f"has {counted[0]} documents of {language} with {counted[1]} bytes, and the summary "
                f"of the corpus {stated[0]} with {stated[1]}",
            )
    order = pack / "order-train.parquet"
    if order.is_file():
        name = order.relative_to(folder).as_posix()
        done(name)
        table = read_table(order, ["document_id", "stage", "occurrence", "tokens"])
        if missing := sorted(set(table["document_id"].to_pylist()) - documents):
            yield Problem(
                file=name,
                what=f"trains on {len(missing)} documents without a row in the ledger: {missing[0]}",
            )
        if manifest is not None and (what := order_difference(table, manifest)):
            yield Problem(file=name, what=what)
    done(BOM)
    rows = [
        (source, licence, sources[source, licence, "documents"], sources[source, licence, "bytes"])
        for source, licence, kind in sources
        if kind == "documents"
    ]
    bom = read_json(folder / BOM)
    stated_parts = bom.get("components", []) if isinstance(bom, dict) else []
    counted_parts = list(corpus_components(sorted(rows, key=lambda row: (-row[3], row))))
    for part in counted_parts:
        if part not in stated_parts:
            shown = json.dumps(part, ensure_ascii=False)[:160]
            yield Problem(file=BOM, what=f"does not state what the ledger counts: {shown}")
    for part in stated_parts if isinstance(stated_parts, list) else ():
        is_data = isinstance(part, dict) and part.get("type") == "data"
        aligned = is_data and str(part.get("bom-ref")).startswith("alignment-")
        if is_data and not aligned and part not in counted_parts:
            shown = json.dumps(part, ensure_ascii=False)[:160]
            yield Problem(file=BOM, what=f"states what the ledger does not count: {shown}")


def order_difference(table: pa.Table, manifest: PackManifest) -> str:
    """Difference of a training order from the one that rule, seed and totals of its packed corpus give; "" for none.

    table   document_id, stage, occurrence and tokens of the rows, in their order
    """
    split, config = manifest.splits[TRAIN], manifest.config
    totals = table.num_rows, sum(table["tokens"].to_pylist())
    if totals != (split.documents, split.tokens):
        return (
            f"has {totals[0]} documents of {totals[1]} tokens, and the packed corpus {split.documents} of "
            f"{split.tokens}"
        )
    seed = config.get("seed") if isinstance(config, dict) else None
    last: tuple[int, str, str, int] | None = None
    columns = (table[name].to_pylist() for name in ("stage", "document_id", "occurrence"))
    for number, (stage, document, occurrence) in enumerate(zip(*columns, strict=True)):
        name = split.stages[stage].name if stage < len(split.stages) else ""
        text = f"pack {seed} {f'{name} ' if name else ''}{document} {occurrence}"
        key = stage, sha256_bytes(text.encode()), document, occurrence
        if last is not None and key < last:
            return f"is not in the order of its rule from row {number} on: {document} follows {last[2]}"
        last = key
    return ""
