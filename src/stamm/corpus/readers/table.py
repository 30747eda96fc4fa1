"""Documents from tables: Parquet, and the Arrow files of Hugging Face datasets.

A column may repeat one long text a million times in a few bytes. So text is read as a dictionary,
and a value is converted to a string only after a check of its length.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stamm.base.errors import DataError
from stamm.base.files import has_ending
from stamm.base.receipts import check_file
from stamm.corpus.documents import (
    InputRecord,
    Place,
    UnreadableRecord,
    clean_field,
    content_id,
    unread_rest,
)
from stamm.corpus.limits import FIELDS, FieldNames, ReadLimits
from stamm.corpus.readers.rows import (
    ADDRESS,
    KNOWN_NAMES,
    LOOKS_LIKE_URL,
    FieldUse,
    addresses_in,
    canonical,
    is_address_field,
    is_known_container,
    is_read,
    may_hold_address,
    record_of,
    text_field,
)

_ROWS, _WHOLE_ROWS = 256, 64
_BATCH_BYTES = 64 * 2**20
TABLE_ERRORS = (OSError, pa.ArrowException, ArithmeticError, LookupError, ValueError)


def read_table_rows(
    name: str, path: Path, limits: ReadLimits, names: FieldNames, use: FieldUse
) -> Iterator[InputRecord | UnreadableRecord]:
    """The documents of a table, and a reason for each invalid row; positions count from 1.

    use      counts the fields
    Edge     a file that ends early gives the rows before, and one UnreadableRecord for the rest.
    Raises   DataError at the end of the file for a configured field that no row has.
    """
    position = 0
    try:
        for batch in _batches(path, names, use):
            columns = list(_flat(batch, names))
            sizes = [_sizes(column) for _, column in columns]
            addresses = _addresses_not_read(batch, names, limits)
            for row in range(batch.num_rows):
                position += 1
                location = Place(file=name, position=position)
                record = _record(location, columns, row, sizes, limits, names, use)
                if addresses.get(row) and isinstance(record, InputRecord) and not record.url:
                    use.read[LOOKS_LIKE_URL].update(addresses[row])
                    field = record.address_field or clean_field(addresses[row][0])
                    record = replace(record, address_field=field)
                yield record
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        detail = str(error).partition("\n")[0][:500]
        yield unread_rest(name, position + 1, "broken_table", detail, "rows")
        return
    use.check(name, names)


def _batches(path: Path, names: FieldNames, use: FieldUse) -> Iterator[pa.RecordBatch]:
    if has_ending(path.name, ".parquet"):
        check_file(path)
        schema = pq.read_schema(path)
        leaves = dict(_leaves(schema))
        text = text_field(schema.names, names)
        unread = [] if _has_address(leaves, names) else [leaf for leaf in leaves if leaf != text]
        texts = [
            leaf for leaf in (text, *unread)
            if leaf in schema.names and schema.field(leaf).type in (pa.string(), pa.large_string())
        ]  # fmt: skip
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            _count_unknown(leaves, file.metadata.num_rows, names, use)
            columns = [
                leaf for leaf, kind in leaves.items()
                if _is_wanted(leaf, names, kind) or (leaf in unread and _holds_text(kind))
            ]  # fmt: skip
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                fitting = _BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)
                rows = min(max(fitting, 1), _ROWS)
                yield from file.iter_batches(rows, row_groups=[number], columns=columns)
        return
    for batch in _arrow_batches(path):
        _count_unknown(dict(_leaves(batch.schema)), batch.num_rows, names, use)
        for start in range(0, batch.num_rows, _ROWS):
            yield batch.slice(start, _ROWS)


def _leaves(fields: Iterable[pa.Field], above: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Paths and types of the columns of a table: of `metadata` and configured structs those inside it."""
    for field in fields:
        path = f"{above}{field.name}"
        if pa.types.is_struct(field.type) and is_known_container(path):
            yield from _leaves(
                [field.type.field(i) for i in range(field.type.num_fields)], f"{path}."
            )
        else:
            yield path, field.type


def _is_wanted(leaf: str, names: FieldNames, kind: pa.DataType) -> bool:
    configured = [getattr(names, field) for field in FIELDS]
    return (
        is_read(leaf)
        or any(
            configured_name == leaf or configured_name.startswith(f"{leaf}.")
            for configured_name in configured
        )
        or any(is_read(name) for name in _names_inside(kind))
    )


def _has_address(paths: Iterable[str], names: FieldNames) -> bool:
    """Whether a table has a column from which the address is read."""
    return any(is_address_field(path, names) for path in paths)


def _holds_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _holds_text(kind.value_type)
    if pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return any(_holds_text(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _addresses_not_read(
    batch: pa.RecordBatch, names: FieldNames, limits: ReadLimits
) -> dict[int, list[str]]:
    """Fields that are not read and look like addresses, by row; {} for a table with a column for them."""
    like: dict[int, list[str]] = {}
    if _has_address(dict(_leaves(batch.schema)), names):
        return like
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for path, values, parents in _texts(name, column, None, names):
            texts = values.dictionary if isinstance(values, pa.DictionaryArray) else values
            matches = pc.match_substring_regex(
                texts, rf"^(?:{ADDRESS}|\s*[\[{{])", ignore_case=True
            )
            matches = pc.and_(matches, pc.less_equal(pc.binary_length(texts), limits.line_bytes))
            if isinstance(values, pa.DictionaryArray):
                matches = matches.take(values.indices)
            for index in pc.indices_nonzero(matches.fill_null(False)).to_pylist():
                row = index if parents is None else parents[index].as_py()
                for field in sorted(addresses_in(path, values[index].as_py())):
                    if field not in like.setdefault(row, []):
                        like[row].append(field)
    return like


def _texts(
    path: str, column: pa.Array, parents: pa.Array | None, names: FieldNames
) -> Iterator[tuple[str, pa.Array, pa.Array | None]]:
    """The texts of a column that are not read, also inside structs and lists, with the row of each.

    parents   the row of each value; None: its position
    """
    kind = column.type
    is_container = pa.types.is_struct(kind) and is_known_container(path)
    if _is_wanted(path, names, kind) and not is_container:
        return
    if pa.types.is_struct(kind):
        for number, child in enumerate(column.flatten()):
            yield from _texts(f"{path}.{kind.field(number).name}", child, parents, names)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        rows = pc.list_parent_indices(column)
        rows = rows if parents is None else parents.take(rows)
        yield from _texts(path, pc.list_flatten(column), rows, names)
    elif _holds_text(kind) and may_hold_address(path):
        yield path, column, parents


def _names_inside(kind: pa.DataType) -> Iterator[str]:
    """The names of the fields of a struct, or of a list of structs, at any depth."""
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield kind.field(number).name
            yield from _names_inside(kind.field(number).type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _names_inside(kind.value_type)


def _count_unknown(
    leaves: dict[str, pa.DataType], rows: int, names: FieldNames, use: FieldUse
) -> None:
    """Columns that are not read count for all rows: whether a value is null is not looked up."""
    use.see(leaves)
    for leaf, kind in leaves.items():
        if not _is_wanted(leaf, names, kind) and canonical(leaf) not in KNOWN_NAMES:
            use.unknown.add([leaf], rows)


def _flat(batch: pa.RecordBatch, names: FieldNames) -> Iterator[tuple[str, pa.Array]]:
    """The columns that are read, by path."""

    def inside(path: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
        if pa.types.is_struct(column.type) and is_known_container(path):
            kinds = [column.type.field(i) for i in range(column.type.num_fields)]
            for kind, child in zip(kinds, column.flatten(), strict=True):
                yield from inside(f"{path}.{kind.name}", child)
        elif _is_wanted(path, names, column.type):
            yield path, column

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        yield from inside(name, column)


def _record(
    place: Place,
    columns: list[tuple[str, pa.Array]],
    row: int,
    sizes: list[pa.Array | None],
    limits: ReadLimits,
    names: FieldNames,
    use: FieldUse,
) -> InputRecord | UnreadableRecord:
    values: dict[str, Any] = {}
    for (name, column), lengths in zip(columns, sizes, strict=True):
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
            values[name] = _as_text(column[row].as_py())
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
    return record_of(place, values, names, use=use)


def _as_text(value: Any) -> Any:
    """The text of a binary column; another value as it is."""
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return value


def _sizes(column: pa.Array) -> pa.Array | None:
    """Bytes of each text of a column, without copying any; None for another type."""
    if isinstance(column, pa.DictionaryArray):
        whole = _sizes(column.dictionary)
        return None if whole is None else whole.take(column.indices)
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    if any(is_kind(column.type) for is_kind in kinds):
        return pc.binary_length(column)
    return None


def first_table_rows(path: Path, count: int) -> list[dict[str, Any]]:
    """The first rows of a table, all of their columns.

    Raises   DataError when it cannot be read
    """
    try:
        return list(itertools.islice(table_rows(path), count))
    except TABLE_ERRORS as error:
        detail = str(error).partition("\n")[0][:200]
        raise DataError(f"{path} cannot be read: {detail}", fix="Fetch it again") from None


def table_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a table, all of their columns.

    Raises   `TABLE_ERRORS` for a damaged file, or a date that Python does not have
    """
    if has_ending(path.name, ".parquet"):
        check_file(path)
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_WHOLE_ROWS):
                yield from batch.to_pylist()
        return
    for batch in _arrow_batches(path):
        for start in range(0, batch.num_rows, _WHOLE_ROWS):
            yield from batch.slice(start, _WHOLE_ROWS).to_pylist()


def _arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow file or stream."""
    check_file(path)
    with pa.memory_map(str(path)) as source:
        try:
            yield from pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            file = pa.ipc.open_file(source)
            yield from (file.get_batch(i) for i in range(file.num_record_batches))
