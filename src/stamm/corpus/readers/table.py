"""Documents from tables: Parquet, and the Arrow files of Hugging Face datasets.

A column may repeat one long text a million times in a few bytes. So text is read as a dictionary,
and a value is converted to a string only after a check of its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stamm.base.receipts import check_file
from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.readers.jsonl import record_of
from stamm.corpus.records import InputRecord, Place, UnreadableRecord, clean_field, content_id

_ROWS = 256
_BATCH_BYTES = 64 * 2**20


def read_table_rows(
    name: str, path: Path, limits: ReadLimits, names: FieldNames
) -> Iterator[InputRecord | UnreadableRecord]:
    """The documents of a table, and a reason for each invalid row; positions count from 1.

    Edge   a file that ends early gives the rows before, and one UnreadableRecord for the rest.
    """
    position = 0
    try:
        for batch in _batches(path, names):
            sizes = [_sizes(column) for column in batch.columns]
            for row in range(batch.num_rows):
                position += 1
                place = Place(file=name, position=position)
                yield _record(place, batch, row, sizes, limits, names)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        detail = str(error).partition("\n")[0][:500]
        yield UnreadableRecord(
            place=Place(file=name, position=position + 1),
            content_id=content_id(name, detail.encode()),
            reason="broken_table",
            detail=f"{detail}; rows from {position + 1} on are lost",
            size=0,
        )


def _batches(path: Path, names: FieldNames) -> Iterator[pa.RecordBatch]:
    if path.name.endswith(".parquet"):
        there = set(pq.read_schema(path).names)
        columns = [name for name in names.all() if name in there]
        texts = [name for name in (names.text,) if name in there]
        check_file(path)
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                fitting = _BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)
                rows = min(max(fitting, 1), _ROWS)
                yield from file.iter_batches(rows, row_groups=[number], columns=columns)
        return
    with pa.memory_map(str(path)) as source:
        try:
            reader: Any = pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            file_reader = pa.ipc.open_file(source)
            reader = (file_reader.get_batch(i) for i in range(file_reader.num_record_batches))
        for batch in reader:
            for start in range(0, batch.num_rows, _ROWS):
                yield batch.slice(start, _ROWS)


def _record(
    place: Place,
    batch: pa.RecordBatch,
    row: int,
    sizes: list[pa.Array | None],
    limits: ReadLimits,
    names: FieldNames,
) -> InputRecord | UnreadableRecord:
    found: dict[str, Any] = {}
    for index, name in enumerate(batch.schema.names):
        if name not in names.all():
            continue
        lengths = sizes[index]
        size = lengths[row].as_py() if lengths is not None else None
        if size is not None and size > limits.line_bytes:
            return UnreadableRecord(
                place=place,
                content_id=content_id(place.file, str(place.position).encode()),
                reason="line_too_long",
                detail=f"{name} has {size} bytes, limit {limits.line_bytes}",
                size=size,
            )
        try:
            found[name] = batch.column(index)[row].as_py()
        except (pa.ArrowException, UnicodeDecodeError):
            raise
        except (ArithmeticError, LookupError, ValueError) as error:
            # A time that Python cannot represent, or in an unknown time zone.
            return UnreadableRecord(
                place=place,
                content_id=content_id(place.file, str(place.position).encode()),
                reason="bad_value",
                detail=clean_field(f"{name}: {error}")[:500],
                size=0,
            )
    return record_of(place, found, names)


def _sizes(column: pa.Array) -> pa.Array | None:
    """Bytes of each text of a column, without copying any; None for another type."""
    if isinstance(column, pa.DictionaryArray):
        whole = _sizes(column.dictionary)
        return None if whole is None else whole.take(column.indices)
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    if any(is_kind(column.type) for is_kind in kinds):
        return pc.binary_length(column)
    return None
