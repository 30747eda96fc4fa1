"""Files of a run folder as frozen dataclasses: one schema for writer and reader.

A schema is `@dataclass(frozen=True, kw_only=True)`. Its fields are int (64 bits), float, bool, str,
object (any JSON value), `X | None`, `tuple[X, ...]`, `Mapping[str, X]` and other schemas. An absent
key, or null, takes the field's default; unknown keys are ignored when reading.

    SCHEMA        version that the file states under "schema"; without it none is stated
    FORMER_KEYS   keys of earlier versions and today's
    OPEN          True where a writer may add keys that the schema does not list
    REST          field, a mapping, that takes the keys that the schema does not list
    SEALED        True where the file contains its own SHA-256, as `base.receipts.seal` writes it

A field whose key is not a Python name has `metadata={"key": "in"}`. Checks of values go into
`__post_init__` and raise `FieldError`. A file may come from anyone: a wrong type, a missing key and
a file too large raise DataError with the file, the key and the value.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import stamm
from stamm.base.errors import DataError
from stamm.base.files import read_json, write_json
from stamm.base.json_text import parse_json
from stamm.base.receipts import SEAL, check_file, is_present, seal
from stamm.base.units import bytes_text

S = TypeVar("S")
LARGEST_JSON = 64 * 2**20
LONGEST_LINE = 4 * 2**20
_LARGEST_INT = 2**63
_LONGEST_SHOWN = 80
_FIX = "Restore the file, or delete its folder and run the step again"
# value, place of the object that holds it, its key there, whether unknown keys are an error
_Decoder = Callable[[Any, str, str, bool], Any]


class FieldError(ValueError):
    """Raised by `__post_init__` of a schema: the value of `field` is not `wanted`."""

    def __init__(self, field: str, wanted: str) -> None:
        super().__init__(f"{field} is not {wanted}")
        self.field = field
        self.wanted = wanted


def read_record(kind: type[S], path: Path, fix: str = _FIX) -> S:
    """The content of the JSON file `path`.

    fix   advice of the error for a damaged file

    Raises   DataError when the file is missing, over 64 MiB, not JSON, of another schema, or when
             a value is not of its field's type.
    """
    if path.is_file() and path.stat().st_size > LARGEST_JSON:
        size = bytes_text(path.stat().st_size)
        raise DataError(f"{path} has {size}, more than {bytes_text(LARGEST_JSON)}", fix=_FIX)
    plain = read_json(path, fix)
    try:
        check_version(kind, plain, path)
        found: S = decode(kind, plain, str(path))
    except DataError as error:
        raise DataError(error.what, fix=fix if error.fix == _FIX else error.fix) from None
    return found


def read_record_if_present(kind: type[S], path: Path, fix: str = _FIX) -> S | None:
    """As `read_record`; None when `path` does not exist."""
    return read_record(kind, path, fix) if is_present(path) else None


def read_lines(kind: type[S], path: Path) -> Iterator[S]:
    """The lines of a JSONL file, in order. Blank lines are skipped.

    Edge     a last line without a newline, which a killed run leaves behind, is skipped.
    Raises   DataError with the line's number when one is over 4 MiB, or as `read_record` does.
    """
    for where, plain in read_objects(path):
        yield decode(kind, plain, where)


def read_objects(path: Path) -> Iterator[tuple[str, Any]]:
    """As `read_lines`, undecoded: the line's place for messages, and its JSON value."""
    check_file(path)
    with path.open("rb") as opened:
        number = 0
        while line := opened.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise DataError(f"line {number} of {path} is over {bytes_text(LONGEST_LINE)}")
            if not line.strip() or not line.endswith(b"\n"):
                continue
            try:
                plain = parse_json(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"line {number} of {path} is not JSON: {error}", fix=_FIX) from None
            yield f"{path}, line {number}", plain


def write_record(path: Path, kind: type[Any], body: Mapping[str, Any]) -> None:
    """Write `body` as JSON to `path`, with its schema's version before it.

    Raises   TypeError when `body` does not follow the schema: a defect of the writer.
    """
    content = record(kind, body)
    write_json(path, content)


def record(kind: type[Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """`body` with the schema's version before it, checked as `write_record` does."""
    content = {"schema": kind.SCHEMA, **body} if hasattr(kind, "SCHEMA") else dict(body)
    sealed = getattr(kind, "SEALED", False)
    if sealed:
        content.pop(SEAL, None)  # of the record that `body` was read from
    try:
        _decode(kind, content, kind.__name__, "", True)
    except DataError as error:
        raise TypeError(error.what) from None
    return seal(content) if sealed else content


def check_version(kind: type[Any], plain: object, path: Path) -> None:
    """Raise DataError when `plain` states another version than the schema `kind`."""
    wanted = getattr(kind, "SCHEMA", None)
    if wanted is None or not isinstance(plain, Mapping):
        return
    if "schema" not in plain:
        raise DataError(f"{path} has no 'schema'", fix=_FIX)
    found = decode(int, plain["schema"], str(path), "schema")
    if found != wanted:
        raise DataError(
            f"{path} has schema {found}; stamm {stamm.__version__} reads {wanted}",
            fix="Use the version of stamm that wrote it",
        )


def decode(kind: Any, plain: Any, where: str, key: str = "") -> Any:
    """`plain` as a value of the type `kind`.

    where   the file, and the path of the enclosing object in it, for messages
    key     of the value in that object

    Raises   DataError with the key and the value.
    """
    return _decode(kind, plain, where, key, False)


def _decode(kind: Any, plain: Any, where: str, key: str, strict: bool) -> Any:
    return _decoder(kind)(plain, where, key, strict)


@functools.cache
def _decoder(kind: Any) -> _Decoder:
    if kind is object or kind is Any:
        return lambda value, where, key, strict: value
    if dataclasses.is_dataclass(kind):
        return _object_decoder(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _optional_decoder(arguments)
    if origin is tuple:
        return _list_decoder(_decoder(arguments[0]))
    if origin is Mapping:
        return _mapping_decoder(_decoder(arguments[1]))
    return _SCALARS[kind]


def _object_decoder(kind: Any) -> _Decoder:
    hints = typing.get_type_hints(kind)
    fields = [
        (
            field.name,
            field.metadata.get("key", field.name),
            _decoder(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    ]
    keys = {name: key for name, key, _, _ in fields}
    rest = getattr(kind, "REST", "")
    fields = [field for field in fields if field[0] != rest]
    known = {*(field[1] for field in fields), "schema"}
    former = getattr(kind, "FORMER_KEYS", {})
    is_open = getattr(kind, "OPEN", False) or bool(rest)

    def read(value: Any, where: str, key: str, strict: bool) -> Any:
        place = _place(where, key)
        if not isinstance(value, Mapping):
            raise DataError(f"{place} holds {_kind_of(value)}, not an object", fix=_FIX)
        if former:
            value = {former.get(name, name): one for name, one in value.items()}
        if strict and not is_open and (more := sorted(value.keys() - known)):
            raise DataError(f"{place}: {kind.__name__} has no field for {more[0]!r}")
        found = {}
        for name, inner, decoder, required in fields:
            one = value.get(inner)
            if one is not None or (required and inner in value):
                found[name] = decoder(one, place, inner, strict)
            elif required:
                raise DataError(f"{place} has no {inner!r}", fix=_FIX)
        if rest:
            found[rest] = {name: one for name, one in value.items() if name not in known}
        try:
            return kind(**found)
        except FieldError as error:
            inner = keys[error.field]
            raise _wrong(place, inner, value[inner], error.wanted) from None

    return read


def _optional_decoder(members: tuple[Any, ...]) -> _Decoder:
    inner = _decoder(next(member for member in members if member is not type(None)))
    return lambda value, where, key, strict: (
        None if value is None else inner(value, where, key, strict)
    )


def _list_decoder(inner: _Decoder) -> _Decoder:
    def read(value: Any, where: str, key: str, strict: bool) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _wrong(where, key, value, "a list")
        return tuple(inner(one, where, f"{key}[{i}]", strict) for i, one in enumerate(value))

    return read


def _mapping_decoder(inner: _Decoder) -> _Decoder:
    def read(value: Any, where: str, key: str, strict: bool) -> Any:
        place = _place(where, key)
        if not isinstance(value, Mapping):
            raise DataError(f"{place} holds {_kind_of(value)}, not an object", fix=_FIX)
        return {name: inner(one, place, name, strict) for name, one in value.items()}

    return read


def _int(value: Any, where: str, key: str, strict: bool) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(where, key, value, "a whole number")
    if abs(value) >= _LARGEST_INT:
        raise _wrong(where, key, value, "a whole number of 64 bits")
    return value


def _float(value: Any, where: str, key: str, strict: bool) -> float:
    """A number; infinities and NaN are accepted, since a run may have diverged."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(where, key, value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise _wrong(where, key, value, "a number of at most 1.8e308") from None


def _bool(value: Any, where: str, key: str, strict: bool) -> bool:
    if not isinstance(value, bool):
        raise _wrong(where, key, value, "true or false")
    return value


def _str(value: Any, where: str, key: str, strict: bool) -> str:
    if not isinstance(value, str):
        raise _wrong(where, key, value, "text")
    return value


_SCALARS: Mapping[Any, _Decoder] = {int: _int, float: _float, bool: _bool, str: _str}


def _place(where: str, key: str) -> str:
    return f"{where}, {_cut(key)}" if key else where


def _wrong(where: str, key: str, value: object, wanted: str) -> DataError:
    try:
        shown = repr(value)
    except ValueError:  # Python prints no integer of over 4,300 digits
        shown = "a number of thousands of digits"
    return DataError(f"{where}: {_cut(key)} = {_cut(shown)} is not {wanted}", fix=_FIX)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def _kind_of(value: object) -> str:
    return {list: "a list", str: "text", type(None): "null"}.get(type(value), "a plain value")
