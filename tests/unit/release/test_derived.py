"""`verify --deep` finds what no hash shows: files that were changed together with all records and sums."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stamm.base.files import sha256_file, write_json
from stamm.base.receipts import seal
from stamm.base.schema import read_record
from stamm.corpus.config import PackConfig, SourceShare, Stage
from stamm.corpus.ledger import LedgerRow
from stamm.corpus.records import PackManifest
from stamm.corpus.tables import LEDGER_SCHEMA, read_table, write_rows
from stamm.export.gguf_reader import GgufReader
from stamm.export.onnx_graph import DATA
from stamm.export.registry import load_target
from stamm.export.target import ExportOptions
from stamm.models.serialization import load_decoder
from stamm.release import write_release as writing
from stamm.release.checksums import write_sums
from stamm.release.config import ReleaseConfig
from stamm.release.derived import derived_problems, order_difference
from stamm.release.file_difference import safetensors_tensors
from stamm.release.verification import verify
from tests.unit.release.conftest import facts_of, finished_run, no_job
from tests.unit.small_corpus import pack_corpus
from tests.unit.untrained_run import untrained_run

FORMATS = ("gguf", "gguf_f16", "onnx", "transformers", "transformers_bf16")


def write_exports(arm: Path) -> None:
    """An export of every built-in format and type, with what the parity report says of its files."""
    decoder = load_decoder(arm / "model")
    tokenizer = arm.parent.parent / "tokenizer" / "tokenizer.json"
    before = json.loads((arm / "export" / "transformers" / "parity.json").read_text())
    for name in FORMATS:
        folder = arm / "export" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        kind, _, types = name.partition("_")
        target = load_target(kind)
        shards = 40_000 if kind == "transformers" else 10**9
        options = ExportOptions(
            quantization=types.upper() or "F32", max_shard_bytes=shards, pre_tokenizer="tekken"
        )
        target.configure(options)  # type: ignore[attr-defined]
        target.write(folder, decoder, tokenizer)
        (folder / "README.md").write_text('---\nlicense: "apache-2.0"\n---\n\n# A model\n')
        names = sorted(p.name for p in folder.iterdir() if p.is_file())
        hashes = {file: sha256_file(folder / file) for file in names}
        sizes = {file: (folder / file).stat().st_size for file in names}
        write_json(folder / "parity.json", before | {"sha256": hashes, "files": sizes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deep")
    arm = finished_run(folder / "run")
    write_exports(arm)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "write_activation", lambda model, folder: None)
        writing.write_release(ReleaseConfig(), facts_of(arm), folder / "release", no_job)
    return folder / "release"


@pytest.fixture
def release(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "release")


def forge(release: Path, file: Path) -> None:
    """Make every record and sum agree with a changed file, as an attacker with the folder can."""
    record = json.loads((release / "release.json").read_text())
    for name in record["formats"]:
        parity = release / ("" if name == "transformers" else f"export/{name}") / "parity.json"
        plain = json.loads(parity.read_text())
        if file.parent == parity.parent and file.name in plain["sha256"]:
            plain["sha256"][file.name] = sha256_file(file)
            plain["files"][file.name] = file.stat().st_size
            write_json(parity, seal(plain) if "self_sha256" in plain else plain)
            record["parity_sha256"][name] = sha256_file(parity)
    write_json(release / "release.json", record)
    write_sums(release)


def problems(release: Path) -> list[tuple[str, str]]:
    return [(p.file, p.what) for p in derived_problems(release, lambda name: None)]


def weights(release: Path) -> Iterator[tuple[Path, str, int, int]]:
    """File, tensor, first byte and stop of every tensor of the exported formats."""
    for path in sorted(release.glob("*.safetensors")) + sorted(release.glob("export/*/*")):
        if path.suffix == ".safetensors":
            for name, (start, stop) in safetensors_tensors(path).items():
                yield path, name, start, stop
        elif path.suffix == ".gguf":
            for name, tensor in GgufReader(path).tensors.items():
                yield path, name, tensor.start, tensor.start + tensor.size
        elif path.name == DATA:
            yield path, "", 0, path.stat().st_size


def test_what_a_release_derives_is_derived_to_the_same_bytes(release: Path) -> None:
    done: list[str] = []
    assert not list(derived_problems(release, done.append))
    exported = {str(p.relative_to(release)) for p, *_ in weights(release)}
    assert exported <= set(done) and len(exported) > 8  # shards among them
    assert {Path(name).suffix for name in exported} == {".safetensors", ".gguf", ".onnx_data"}
    assert not verify(release, deep=True).problems


def test_every_changed_weight_is_found_and_its_tensor_named(release: Path) -> None:
    draw = random.Random(7)
    tensors = list(weights(release))
    by_format = {
        path.parent: [t for t in tensors if t[0].parent == path.parent] for path, *_ in tensors
    }
    assert len(by_format) == len(FORMATS)
    for chosen in [draw.choice(group) for group in by_format.values()]:
        path, name, start, stop = chosen
        before = path.read_bytes()
        place = draw.randrange(start, stop)
        changed = bytearray(before)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        forge(release, path)
        assert not verify(release, all=True).problems  # every hash and record agrees
        ((file, what),) = problems(release)
        assert file == str(path.relative_to(release))
        assert name in what and f"1 bytes from {place} on" in what
        path.write_bytes(before)
        forge(release, path)
    assert not problems(release)


def test_added_removed_and_reordered_files_are_told(release: Path) -> None:
    path = release / "export" / "gguf" / "model-F32.gguf"
    path.write_bytes(path.read_bytes().replace(b"tekken", b"llama3"))
    (release / "config.json").write_text(
        (release / "config.json").read_text().replace("160", "161")
    )
    (release / "export" / "onnx" / "model.onnx").unlink()
    write_sums(release)
    found = dict(problems(release))
    assert len(found) == 2  # the rule in the GGUF file is a choice of the export
    assert "key max_position_embeddings" in found["config.json"]
    assert "it is missing" in found["export/onnx/model.onnx"]


def ledger(release: Path, rows: list[dict[str, Any]], languages: dict[str, Any]) -> None:
    """A ledger, the summary of its corpus and a licence summary for a release."""
    write_rows(release / "documents" / "ledger-00000.parquet", LEDGER_SCHEMA, rows)
    empty = {"dropped_by_reason": {}, "documents_by_consent": {}, "pii_replaced": {}, "by_split": {}, "by_host": {}, "hosts": 0}  # fmt: skip
    summary = {"schema": 1, "n_in": 2, "n_kept": 2, "n_probes": 0, "bytes_in": 9, "bytes_kept": 9, "kept_by_language": languages, **empty}  # fmt: skip
    write_json(release / "run" / "corpus" / "summary.json", summary)


def test_card_bill_ledger_order_and_tokenizer_must_agree(release: Path) -> None:
    order = json.loads((release / "run" / "arms" / "xielu" / "summary.json").read_text())
    write_json(release / "run" / "arms" / "xielu" / "summary.json", order | {"steps": 4})
    manifest = json.loads((release / "run" / "pack" / "manifest.json").read_text())
    write_json(
        release / "run" / "pack" / "manifest.json", manifest | {"tokenizer_sha256": "0" * 64}
    )
    rows = [
        LedgerRow(
            document_id=f"{n:032x}", input_file="", input_position=0, language="deu_Latn", decision="kept",
            source="made up", licence="CC0-1.0", bytes_out=5,
        ).plain()
        for n in range(2)
    ]  # fmt: skip
    write_json(release / "bom.cdx.json", {"components": []})
    ledger(release, rows, {"deu_Latn": {"documents": 2, "bytes": 11}})
    write_sums(release)
    found = problems(release)
    files = [file for file, _ in found]
    assert files == [
        "README.md",
        "run/tokenizer/tokenizer.json",
        "documents/ledger-*.parquet",
        "run/pack/order-train.parquet",
        "bom.cdx.json",
    ]
    assert "steps" in found[0][1] and "2 documents of deu_Latn with 10 bytes" in found[2][1]
    assert "without a row in the ledger" in found[3][1] and "CC0-1.0" in found[4][1]
    # What only the summaries have, or only the ledger.
    false = {"type": "data", "bom-ref": "data-9", "name": "bought", "licenses": []}
    write_json(release / "bom.cdx.json", {"components": [false]})
    rows[1]["language"] = "fra_Latn"
    ledger(release, rows, {"deu_Latn": {"documents": 1, "bytes": 5}})
    write_sums(release)
    said = [what for file, what in problems(release) if file in (files[2], files[4])]
    assert len(said) == 3 and "1 documents of fra_Latn with 5 bytes" in said[0]
    assert "states what the ledger does not count" in said[2] and "bought" in said[2]


@pytest.mark.parametrize("staged", [False, True])
def test_a_training_order_has_the_order_of_its_rule(staged: bool, tmp_path: Path) -> None:
    """Catches an order with two rows exchanged, by which a trace would name wrong steps."""
    untrained_run(tmp_path)
    if staged:
        shares = (Stage(name="one", sources=(SourceShare(epochs=0.6),)),
                  Stage(name="two", sources=(SourceShare(epochs=1.7),)))  # fmt: skip
        pack_corpus(PackConfig(stages=shares), tmp_path)
    manifest = read_record(PackManifest, tmp_path / "pack" / "manifest.json")
    order = read_table(tmp_path / "pack" / "order-train.parquet")
    assert order_difference(order, manifest) == ""
    rows = list(range(order.num_rows))
    for first in rows[:-1]:
        swapped = [*rows[:first], first + 1, first, *rows[first + 2 :]]
        assert "order of its rule" in order_difference(order.take(swapped), manifest)
    assert "documents of" in order_difference(order.slice(1), manifest)
