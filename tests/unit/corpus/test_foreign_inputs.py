"""Files as other tools write them: rows with several texts, binary columns, encodings of the web."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_inputs import page, warc_response

from stamm.base.errors import DataError
from stamm.corpus.documents import OPT_OUT_FIELD, InputRecord, UnreadableRecord
from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.corpus.readers.rows import FieldUse

TEXT = "This is the text of a document."


def read(
    path: Path, use: FieldUse | None = None, names: FieldNames | None = None
) -> list[InputRecord | UnreadableRecord]:
    return list(read_input(path.name, path, ReadLimits(record_bytes=100_000), names, use=use))


def rows(folder: Path, *values: dict[str, Any], use: FieldUse | None = None) -> list[Any]:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in values))
    return read(path, use)


def result(record: InputRecord | UnreadableRecord) -> str:
    return record.content.decode() if isinstance(record, InputRecord) else record.reason


@pytest.mark.parametrize(
    ("row", "text", "unused"),
    [
        ({"text": TEXT, "score": float("nan")}, TEXT, {"score": 1}),
        ({"text": "", "content": TEXT}, TEXT, {}),
        ({"text": " \n", "raw_content": TEXT}, TEXT, {}),
        ({"text": "", "content": ""}, "", {}),
        ({"text": TEXT, "content": TEXT}, TEXT, {}),
        ({"text": TEXT, "content": "Another."}, TEXT, {"content (another text)": 1}),
        ({"text": [TEXT]}, "no_text", {}),
        ({"text": {"en": TEXT}}, "no_text", {}),
        ({"body": TEXT}, "no_text", {"body": 1}),
        ({"data": {"text": TEXT}}, "no_text", {"data": 1}),
    ],
)
def test_the_text_of_a_row(
    tmp_path: Path, row: dict[str, Any], text: str, unused: dict[str, int]
) -> None:
    use = FieldUse()
    (record,) = rows(tmp_path, row, use=use)
    assert result(record) == text
    counted = {key: count for key, count in use.unknown.counts().items() if key != "score"}
    assert counted == {key: count for key, count in unused.items() if key != "score"}


def test_a_row_without_a_text_says_which_fields_there_are(tmp_path: Path) -> None:
    (record,) = rows(tmp_path, {"body": TEXT, "title": "x"})
    assert isinstance(record, UnreadableRecord)
    assert record.detail == (
        "no text; fields of the file: body, title: set corpus.fields.text to the one with the text"
    )


@pytest.mark.parametrize(
    ("licence", "denies"),
    [
        ("CC0 but not for AI training", True),
        ("MIT (no machine learning)", True),
        ("All rights reserved, including text and data mining; no TDM", True),
        ("LicenseRef-no-ai", True),
        (["MIT", "NoAI"], True),
        ("CC-BY-NC-4.0", False),
        ("MIT OR CC-BY-NC-4.0", False),
        ("GPL-3.0-only WITH Classpath-exception-2.0", False),
        ("no known restrictions", False),
    ],
)
def test_a_licence_that_denies_training_opts_out(
    tmp_path: Path, licence: object, denies: bool
) -> None:
    (record,) = rows(tmp_path, {"text": TEXT, "license": licence})
    assert isinstance(record, InputRecord)
    assert bool(record.signals.values(OPT_OUT_FIELD)) is denies


def test_addresses_of_pictures_are_not_offered_as_that_of_the_document(tmp_path: Path) -> None:
    use = FieldUse()
    media = [{"type": 0, "url": "https://a.example/p.png"}]
    rows(tmp_path, {"text": TEXT, "media": media, "metadata": {}}, use=use)
    assert use.like_url() == ""


@pytest.mark.parametrize(
    ("column", "results"),
    [
        (pa.array([TEXT.encode(), b"\xff\xfe"], pa.binary()), [TEXT, "no_text"]),
        (pa.array([TEXT.encode()], pa.large_binary()), [TEXT]),
        (pa.array([[TEXT]]), ["no_text"]),
        (pa.array([{"en": TEXT}]), ["no_text"]),
        (pa.array([TEXT]).dictionary_encode(), [TEXT]),
        (pa.array([None], pa.null()), ["no_text"]),
    ],
    ids=["binary", "large binary", "list", "struct", "dictionary", "null"],
)
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_types_of_a_text_column(
    tmp_path: Path, ending: str, column: pa.Array, results: list[str]
) -> None:
    path = tmp_path / f"a.{ending}"
    table = pa.table({"text": column})
    if ending == "parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    assert [result(record) for record in read(path)] == results


@pytest.mark.parametrize("encoding", ["br", "zstd"])
def test_brotli_and_zstandard_bodies_are_read_under_a_bound(tmp_path: Path, encoding: str) -> None:
    codec = pa.Codec({"br": "brotli"}.get(encoding, encoding))
    body, bomb = page("The bridge."), b"<p>" + b"a" * 200_000
    bodies = [codec.compress(content, asbytes=True) for content in (body, bomb)]
    bodies.append(bodies[0][:-9])
    headers = {"Content-Type": "text/html", "Content-Encoding": encoding}
    path = tmp_path / "a.warc"
    path.write_bytes(b"".join(warc_response("https://a.test/x", part, headers) for part in bodies))
    results = [result(record) for record in read(path)]
    assert results[:2] == [body.decode(), "record_too_long"]
    assert results[2] in ("content_encoding", "truncated_record")


def test_a_page_without_a_type_is_html_where_it_begins_so(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    bodies = (b"\n<!DOCTYPE html><p>x", b"<html><p>y", b"%PDF-1.4", b"text")
    path.write_bytes(
        b"".join(warc_response("https://a.test/x", body, {"Server": "x"}) for body in bodies)
    )
    assert [result(record) for record in read(path)] == [
        *(body.decode() for body in bodies[:2]), "content_type", "content_type"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["a.jsonl", "a.warc", "a.wet"])
def test_a_compressed_file_under_another_ending_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b'{"text": "x"}\n'))
    with pytest.raises(DataError, match=f"{name} cannot be read: gzip data under another ending"):
        read(path)
