"""Verification of a released folder, offline: hashes, files, and records that contradict each other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError, RunError
from stamm.base.files import read_json
from stamm.base.schema import read_record, read_record_if_present
from stamm.evaluate.records import MemorizationFile, TaskFile
from stamm.export.changed_model import changed
from stamm.export.records import ParityFile
from stamm.release.card import evaluation, memorization, parity_table
from stamm.release.checksums import SUMS, hash_files, list_files, read_sums
from stamm.release.evaluations import eval_results, model_index
from stamm.release.layout import (
    BOM,
    CARD,
    EVIDENCE,
    PARITY,
    RECORD,
    RUN,
    SIGNATURE,
    arm_folder,
    export_folder,
)
from stamm.release.records import Problem, ReleaseFile
from stamm.release.signature import signature_problem
from stamm.runs.model_outputs import CHANGE, DECODER, KEY, WEIGHTS, WEIGHTS_KEY, read_change


def verify(folder: Path, key: Path | None = None) -> Iterator[Problem]:
    """The problems of a released folder, one at a time: files and hashes, records, signature.

    key   the public key of the signature; None: the signature is not checked

    Raises   RunError when it is not a folder; DataError when `key` does not exist.
    Checked  tests/unit/release/test_verify.py
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder", fix="Name a folder that `stamm release` wrote")
    if key is not None and not key.is_file():
        raise DataError(f"{key} does not exist", fix="Name the public key (PEM) with --key")
    yield from _file_problems(folder)
    if key is not None:
        yield from (Problem(file=SIGNATURE, what=what) for what in signature_problem(folder, key))


def _file_problems(folder: Path) -> Iterator[Problem]:
    try:
        sums = read_sums(folder)
    except DataError as error:
        yield Problem(file=SUMS, what=error.what)
        return
    present = list_files(folder)
    for name in sorted(set(present) ^ set(sums)):
        yield Problem(file=name, what="is missing" if name in sums else f"is not listed in {SUMS}")
    for name, sha256 in hash_files(folder, sorted(set(present) & set(sums))):
        if sha256 != sums[name]:
            actual = "cannot be read" if sha256 is None else f"has SHA-256 {sha256}"
            yield Problem(file=name, what=f"{actual}, and {SUMS} lists {sums[name]}")
    try:
        record = read_record(ReleaseFile, folder / RECORD)
    except DataError as error:
        yield Problem(file=RECORD, what=error.what)
        return
    for name, what, stated, wanted in _statements(folder, record, sums):
        if stated != wanted:
            shown = f"{str(stated)[:80]!r}, and {RECORD} wants {str(wanted)[:80]!r}"
            yield Problem(file=name, what=f"{what} is {shown}")
    try:
        yield from _card_problems(folder, record)
    except DataError as error:
        yield Problem(file=CARD, what=f"cannot be compared with the records: {error.what}")


def _card_problems(folder: Path, record: ReleaseFile) -> Iterator[Problem]:
    """Tables of the card, and results for the Hub, that are not those of the records."""
    arm = folder / arm_folder(record.arm)
    tasks = {
        path.stem: read_record(TaskFile, path) for path in sorted((arm / "evaluate").glob("*.json"))
    }
    parity = {
        target: read_record(ParityFile, folder / export_folder(target) / PARITY)
        for target in record.formats
    }
    audit = read_record_if_present(MemorizationFile, arm / "audit" / "memorization.json")
    card = (folder / CARD).read_text(encoding="utf-8", errors="replace")
    change = read_change(arm / "model")
    parts = {
        f"{arm_folder(record.arm)}/model/{CHANGE}": list(changed(change)),
        f"{arm_folder(record.arm)}/evaluate": evaluation(tasks),
        f"{arm_folder(record.arm)}/audit/memorization.json": memorization(audit),
        PARITY: [parity_table(parity)],
    }
    for source, texts in parts.items():
        if "\n\n".join(texts) not in card:
            yield Problem(file=CARD, what=f"does not state what {source} records")
    index = model_index(record.name, tasks)
    line = f"model-index: {json.dumps(index, ensure_ascii=False)}"
    if (line if index else "") not in card or bool(index) != ("\nmodel-index: " in card):
        yield Problem(file=CARD, what="has a model-index that is not what the evaluation records")
    results = eval_results(tasks)
    for path in sorted((folder / ".eval_results").glob("*")):
        if read_json(path) != results.get(path.stem):
            name = path.relative_to(folder).as_posix()
            yield Problem(file=name, what="is not what the evaluation records")


def _statements(
    folder: Path, record: ReleaseFile, sums: Mapping[str, str]
) -> Iterator[tuple[str, str, object, object]]:
    """(file, key, stated, wanted) of everything that the files of a release say about each other."""
    arm = arm_folder(record.arm)
    weights, tokenizer = f"{arm}/model/{WEIGHTS}", f"{RUN}/tokenizer/tokenizer.json"
    pack, corpus = f"{RUN}/pack/manifest.json", f"{RUN}/corpus/summary.json"
    recorded = {"pack": record.pack_sha256, "tokenizer": record.tokenizer_sha256}
    yield weights, "its SHA-256", sums.get(weights), record.model_sha256
    yield tokenizer, "its SHA-256", sums.get(tokenizer), record.tokenizer_sha256
    yield pack, "its SHA-256", sums.get(pack), record.pack_sha256
    yield corpus, "its SHA-256", sums.get(corpus), record.corpus_sha256

    decoder = f"{arm}/model/{DECODER}"
    yield decoder, WEIGHTS_KEY, _value(folder, decoder, WEIGHTS_KEY), record.model_sha256
    for target in record.formats:
        name = f"{export_folder(target)}{PARITY}"
        yield name, KEY, _value(folder, name, KEY), record.model_sha256
        yield name, "passed", _value(folder, name, "passed"), True
        yield name, "its SHA-256", sums.get(name), record.parity_sha256.get(target)
        hashes = _value(folder, name, "sha256")
        for file, sha256 in hashes.items() if isinstance(hashes, dict) else ():
            exported = f"{export_folder(target)}{file}"
            if exported != CARD:  # the card of the release takes its place
                yield exported, f"its SHA-256, by {name}", sums.get(exported), sha256
    if (name := f"{export_folder('transformers')}tokenizer.json") in sums:
        yield name, "its SHA-256", sums[name], record.tokenizer_sha256
    for name in sums:
        own = (f"{arm}/evaluate/", f"{arm}/audit/", f"{arm}/model/{CHANGE}")
        measured = name.startswith(own)
        if measured and name.endswith(".json"):
            stated = _value(folder, name, KEY)
            yield name, KEY, stated or record.model_sha256, record.model_sha256
    manifest = f"{arm}/manifest.json"
    for key, wanted in recorded.items():
        stated = _value(folder, manifest, "inputs", key, "sha256")
        if stated and wanted:
            yield manifest, f"inputs.{key}.sha256", stated, wanted
    if record.pack_sha256:
        stated = _value(folder, pack, "tokenizer_sha256")
        yield pack, "tokenizer_sha256", stated or recorded["tokenizer"], recorded["tokenizer"]
    summary = f"{EVIDENCE}/training_summary.json"
    for read, wanted in (
        ("corpus/summary.json", record.corpus_sha256),
        ("pack/manifest.json", record.pack_sha256),
    ):
        if stated := _value(folder, summary, "read", read):
            yield summary, f"read.{read}", stated, wanted
    hashes = _value(folder, BOM, "metadata", "component", "hashes")
    yield (
        BOM,
        "metadata.component.hashes",
        hashes,
        [{"alg": "SHA-256", "content": record.model_sha256}],
    )


def _value(folder: Path, name: str, *keys: str) -> Any:
    """A value in a JSON file; None where the file or a key is missing, or not of this form."""
    try:
        value = read_json(folder / name)
    except (DataError, OSError):
        return None
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
