"""Files of a run folder as frozen dataclasses: one schema for writer and reader.

A schema is `@dataclass(frozen=True, kw_only=True)` with fields as `base.decoder` reads them, int of 64 bits.
An absent key, or null, takes the field's default; unknown keys are ignored when reading.

    SCHEMA        version that the file states under "schema"; without it none is stated
    OPEN          True where a writer may add keys that the schema does not list
    REST          field, a mapping, that takes the keys that the schema does not list
    SEALED        True where the file contains its own SHA-256, as `base.receipts.seal` writes it

Checks of values go into `__post_init__` and raise `FieldError`. A file may come from anyone: a wrong type, a missing key and
a file too large raise DataError with the file, the key and the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from stamm.base.decoder import FieldError as FieldError
from stamm.base.decoder import RefusedError, cut, decoder, shown
from stamm.base.errors import DataError
from stamm.base.files import read_json, write_json
from stamm.base.json_text import parse_json
from stamm.base.receipts import SEAL, check_file, is_present, seal
from stamm.base.units import bytes_text
from stamm.version import VERSION

S = TypeVar("S")
LARGEST_JSON = 64 * 2**20
LONGEST_LINE = 4 * 2**20
_KINDS = {list: "a list", str: "text", type(None): "null"}
_FIX = "Restore the file, or delete its folder and run the step again"


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
        record: S = decode(kind, plain, str(path))
    except DataError as error:
        raise DataError(error.what, fix=fix if error.fix == _FIX else error.fix) from None
    return record


def read_record_if_present(kind: type[S], path: Path, fix: str = _FIX) -> S | None:
    """As `read_record`; None when `path` does not exist."""
    return read_record(kind, path, fix) if is_present(path) else None


def read_lines(kind: type[S], path: Path) -> Iterator[S]:
    """The lines of a JSONL file, in order. Blank lines are skipped.

    Edge     a last line without a newline, which a killed run leaves behind, is skipped.
    Raises   DataError with the line's number when one is over 4 MiB, or as `read_record` does.
    """
    read = decoder(kind, "read")  # type: ignore[arg-type]  # a class is hashable
    for where, plain in read_objects(path):
        try:
            yield read(plain)
        except RefusedError as refused:
            raise _error(refused, where) from None


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
        decoder(kind, "written")(content)  # type: ignore[arg-type]
    except RefusedError as refused:
        raise TypeError(_error(refused, kind.__name__).what) from None
    return seal(content) if sealed else content


def check_version(kind: type[Any], plain: object, path: Path) -> None:
    """Raise DataError when `plain` states another version than the schema `kind`."""
    wanted = getattr(kind, "SCHEMA", None)
    if wanted is None or not isinstance(plain, Mapping):
        return
    if "schema" not in plain:
        raise DataError(f"{path} has no 'schema'", fix=_FIX)
    version = decode(int, plain["schema"], str(path), "schema")
    if version != wanted:
        raise DataError(
            f"{path} has schema {version}; stamm {VERSION} reads {wanted}",
            fix="Use the version of stamm that wrote it",
        )


def decode(kind: Any, plain: Any, where: str, key: str = "") -> Any:
    """`plain` as a value of the type `kind`.

    where   the file, and the path of the enclosing object in it, for messages
    key     of the value in that object

    Raises   DataError with the key and the value.
    """
    try:
        return decoder(kind, "read")(plain)
    except RefusedError as refused:
        refused.keys += [key] if key else []
        raise _error(refused, where) from None


def _error(refused: RefusedError, where: str) -> DataError:
    """The error for a value of the file `where`: "FILE, arms[0]: loss = 'x' is not a number"."""
    steps: list[str] = []
    for key in reversed(refused.keys):
        steps.append(f"{steps.pop() if steps else ''}[{key}]" if isinstance(key, int) else key)
    name = cut(steps.pop()) if refused.problem == "wrong" and steps else ""
    location = ", ".join([where, *map(cut, steps)]) + f": {name}" * bool(name)
    match refused.problem:
        case "wrong":
            what = f" = {shown(refused.value)} is not {refused.wanted}"
        case "no object":
            what = f" holds {_KINDS.get(type(refused.value), 'a plain value')}, not an object"
        case "missing keys":
            what = f" has no {', '.join(map(repr, refused.value))}"
        case _:
            what = f" has an {refused.problem}, {shown(refused.value)}"
    return DataError(f"{location}{what}", fix=_FIX)
