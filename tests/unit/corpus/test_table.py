"""Documents from Parquet and Arrow, as Hugging Face datasets keep theirs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stamm.base.errors import DataError
from stamm.base.files import sha256_file, write_json
from stamm.base.receipts import seal
from stamm.corpus.documents import InputRecord, UnreadableRecord
from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.readers.open import read_input

TABLE = pa.table(
    {
        "text": ["One text.", None, "Zwei Texte.", "x" * 3000],
        "url": ["https://a.org/1", "https://a.org/2", None, "https://a.org/4"],
        "license": ["CC0-1.0", None, "MIT", None],
        "language": ["eng_Latn", None, "deu_Latn", None],
        "score": [1.0, 2.0, 3.0, 4.0],
    }
)


def written(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        make = pa.ipc.new_file if "file" in path.name else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema) as writer:
            writer.write_table(table)
    return path


def read(path: Path, names: FieldNames | None = None) -> list[InputRecord | UnreadableRecord]:
    return list(read_input(str(path), path, ReadLimits(line_bytes=2000), names))


@pytest.mark.parametrize("name", ["x.parquet", "x-file.arrow", "x-stream.arrow"])
def test_rows_become_documents_and_defects_are_told(tmp_path: Path, name: str) -> None:
    first, empty, third, long = read(written(tmp_path / name, TABLE))
    assert isinstance(first, InputRecord)
    assert isinstance(third, InputRecord)
    assert (first.content, first.url, first.licence) == (b"One text.", "https://a.org/1", "CC0-1.0")
    assert (first.language, first.place.position) == ("eng_Latn", 1)
    assert (third.content, third.url, third.licence) == (b"Zwei Texte.", "", "MIT")
    assert isinstance(empty, UnreadableRecord)
    assert empty.reason == "no_text"
    assert isinstance(long, UnreadableRecord)
    assert (long.reason, long.detail) == ("line_too_long", "text has 3000 bytes, limit 2000")


def test_a_document_is_the_same_in_every_kind_of_file(tmp_path: Path) -> None:
    names = ("x.parquet", "x-file.arrow", "x-stream.arrow")
    found = [read(written(tmp_path / name, TABLE))[0].content_id for name in names]
    line = tmp_path / "x.jsonl"
    line.write_text('{"text": "One text.", "url": "https://a.org/1"}\n')
    assert set(found) == {read(line)[0].content_id}


def test_fields_may_have_other_names(tmp_path: Path) -> None:
    table = pa.table({"content": ["A text."], "link": ["https://b.org/"], "lang": ["fra_Latn"]})
    names = FieldNames(text="content", url="link", language="lang")
    (record,) = read(written(tmp_path / "x.parquet", table), names)
    assert isinstance(record, InputRecord)
    assert (record.content, record.url) == (b"A text.", "https://b.org/")
    assert record.language == "fra_Latn"
    (line,) = (tmp_path / "x.jsonl",)
    line.write_text('{"content": "A text.", "link": "https://b.org/", "lang": "fra_Latn"}\n')
    assert read(line, names)[0].content_id == record.content_id


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("s"),
        pa.timestamp("ms"),
        pa.date64(),
        pa.duration("s"),
        pa.timestamp("s", "UTC"),
    ],
)
@pytest.mark.parametrize("name", ["date", "url", "text"])
def test_a_time_beyond_all_years_is_told(tmp_path: Path, kind: pa.DataType, name: str) -> None:
    values = {
        "text": pa.array(["one", "two"]),
        name: pa.array([2**62, None], pa.int64()).cast(kind),
    }
    first, second = read(written(tmp_path / "x-stream.arrow", pa.table(values)))
    assert isinstance(first, UnreadableRecord)
    assert (first.reason, first.place.position) == ("bad_value", 1)
    assert first.detail.startswith(f"{name}: ")
    assert isinstance(second, UnreadableRecord if name == "text" else InputRecord)


def test_a_date_beyond_all_years_and_an_unknown_time_zone_are_told(tmp_path: Path) -> None:
    days = pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32())
    first, second = read(
        written(tmp_path / "x.parquet", pa.table({"text": ["a", "b"], "date": days}))
    )
    assert isinstance(first, UnreadableRecord)
    assert isinstance(second, InputRecord)
    there = pa.array([0, None], pa.timestamp("s", "Mars/Base"))
    table = pa.table({"text": ["a", "b"], "date": there})
    first, second = read(written(tmp_path / "x-file.arrow", table))
    assert isinstance(first, UnreadableRecord)
    assert (first.reason, first.detail) == ("bad_value", "date: 'Mars/Base'")
    assert isinstance(second, InputRecord)


@pytest.mark.parametrize("name", ["x.parquet", "x-stream.arrow"])
def test_a_file_that_is_no_table_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PAR1 nothing of the kind PAR1")
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / name)


def test_a_stream_that_ends_early_gives_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "x-stream.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, TABLE.schema) as writer:
        for _ in range(3):
            writer.write_table(TABLE.slice(0, 1))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 300])
    *whole, last = read(path)
    assert [record.place.position for record in whole] == [1, 2]
    assert isinstance(last, UnreadableRecord)
    assert last.reason == "broken_table"
    assert "rows from 3 on are lost" in last.detail


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_a_table_of_a_run_that_was_altered_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "data" / f"rows{ending}"
    path.parent.mkdir()
    write_json(tmp_path / "manifest.json", {})
    for text in ("as written", "altered"):
        table = pa.table({"text": [text]})
        if ending == ".parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table)
        if text == "as written":
            outputs = {path.name: {"sha256": sha256_file(path)}}
            content = {"step": "made", "folder": "data", "ended": 1.0, "outputs": outputs}
            write_json(tmp_path / "steps" / "made.json", seal(content))
            (record,) = read_input(path.name, path, ReadLimits())
            assert isinstance(record, InputRecord) and record.content == b"as written"
    with pytest.raises(DataError, match="differs from what step made wrote"):
        list(read_input(path.name, path, ReadLimits()))
