"""Decoder of JSON values into dataclasses: of settings (`base.config`) and of files (`base.schema`).

The types of the fields are the schema: int, float, bool, str, object (any JSON value), Literal, `X | None`,
`tuple[X, ...]`, `Mapping[str, X]`, dataclasses, and unions of these. In a union of dataclasses a value
names its class under "kind". A field whose key is not a Python name has `metadata={"key": "in"}`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

KIND = "kind"
_LARGEST_INT = 2**63
_LONGEST_SHOWN = 80
_SCALARS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
# Unknown keys are refused in settings and in files that are written. In files that are read or written
# null is an absent key where the field has a default, "schema" is its version, and integers have 64 bits.
Mode = Literal["setting", "read", "written"]
Decoder = Callable[[Any], Any]


@dataclasses.dataclass(eq=False)
class RefusedError(ValueError):
    """A value that its type refuses.

    problem   of the value itself, or of the object that holds it
    value     what is refused: the value, the unknown key, the missing keys, the name of a class
    wanted    in its place: "a number", the known keys, the names of the classes
    keys      of the objects, and positions in the lists, that lead to it, the innermost first
    """

    problem: Literal["wrong", "no object", "unknown key", "missing keys", "unknown class"]
    value: Any
    wanted: Any = ""
    keys: list[str | int] = dataclasses.field(default_factory=list)


class FieldError(ValueError):
    """Raised by `__post_init__` of a file's dataclass: the value of `field` is not `wanted`."""

    def __init__(self, field: str, wanted: str) -> None:
        super().__init__(f"{field} is not {wanted}")
        self.field = field
        self.wanted = wanted


@functools.cache
def decoder(annotation: Any, mode: Mode) -> Decoder:
    """The function that reads a value of the type `annotation`, or raises `RefusedError`."""
    wanted, members = type_name(annotation), members_of(annotation)
    readers = {m: _member(m, wanted, mode) for m in members if m is not type(None)}
    is_optional, classes = len(readers) < len(members), classes_of(annotation)
    if len(readers) == 1:
        (inner,) = readers.values()
        return (lambda value: None if value is None else inner(value)) if is_optional else inner

    def read(value: Any) -> Any:
        if value is None and is_optional:
            return None
        if classes and isinstance(value, Mapping):
            if len(classes) == 1:
                return readers[classes[0]](value)
            body = dict(value)
            return readers[class_named(classes, str(body.pop(KIND, "")))](body)
        for member, reader in readers.items():
            if get_origin(member) is tuple and isinstance(value, (list, tuple)):
                return reader(value)
            with contextlib.suppress(RefusedError):
                return reader(value)
        raise RefusedError("wrong", value, wanted)

    return read


def _member(member: Any, wanted: str, mode: Mode) -> Decoder:
    """The decoder of one member of a union, or of another type; wanted: name of the whole type."""
    origin, arguments = get_origin(member), get_args(member)
    if member is object or member is Any:
        return lambda value: value
    if dataclasses.is_dataclass(member):
        return _object(member, wanted, mode)
    if origin is tuple:
        return _list(decoder(arguments[0], mode), wanted)
    if origin is Mapping:
        return _mapping(decoder(arguments[1], mode))
    if member in (int, float):
        return _number(member, wanted, math.inf if mode == "setting" else _LARGEST_INT)

    def read(value: Any) -> Any:
        if not isinstance(value, member):
            raise RefusedError("wrong", value, wanted)
        return value

    def read_choice(value: Any) -> Any:
        if origin is not Literal or value not in arguments:
            raise RefusedError("wrong", value, wanted)
        return value

    return read if member in _SCALARS else read_choice


def _object(kind: Any, wanted: str, mode: Mode) -> Decoder:
    hints, needed, rest = field_types(kind), missing_fields(kind, ()), getattr(kind, "REST", "")
    keys = {f.name: f.metadata.get("key", f.name) for f in dataclasses.fields(kind)}
    fields = [(n, k, decoder(hints[n], mode), n in needed) for n, k in keys.items() if n != rest]
    is_file = mode != "setting"
    known = {key for _, key, _, _ in fields} | ({"schema"} if is_file else set())
    is_open = mode == "read" or rest or getattr(kind, "OPEN", False)

    def read(value: Any) -> Any:
        if not isinstance(value, (dict, Mapping)):  # dict first: that check is faster
            raise RefusedError("no object", value, wanted)
        if not is_open and (more := [key for key in value if key not in known]):
            raise RefusedError("unknown key", more[0], known)
        values: dict[str, Any] = {}
        key, is_whole = "", True
        try:
            for name, key, inner, is_needed in fields:
                item = value.get(key)
                if item is not None or (key in value and (is_needed or not is_file)):
                    values[name] = inner(item)
                elif is_needed:
                    is_whole = False
            if is_whole:
                if rest:
                    values[rest] = {k: item for k, item in value.items() if k not in known}
                return kind(**values)
        except RefusedError as error:
            error.keys.append(key)
            raise
        except FieldError as error:
            key = keys[error.field]
            raise RefusedError("wrong", value.get(key), error.wanted, [key]) from None
        raise RefusedError("missing keys", [keys[n] for n in needed if n not in values])

    return read


def _list(inner: Decoder, wanted: str) -> Decoder:
    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise RefusedError("wrong", value, wanted)
        items: list[Any] = []
        try:
            for item in value:
                items.append(inner(item))  # noqa: PERF401  # their number is the place of an error
        except RefusedError as error:
            error.keys.append(len(items))
            raise
        return tuple(items)

    return read


def _mapping(inner: Decoder) -> Decoder:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise RefusedError("no object", value)
        values, key = {}, ""
        try:
            for key, item in value.items():
                values[key] = inner(item)
        except RefusedError as error:
            error.keys.append(key)
            raise
        return values

    return read


def _number(kind: Any, wanted: str, largest: float) -> Decoder:
    """Infinities and NaN are accepted, since a run may have diverged."""
    accepted = (int, float) if kind is float else int

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise RefusedError("wrong", value, wanted)
        if kind is int:
            if abs(value) >= largest:
                raise RefusedError("wrong", value, f"{_SCALARS[int]} of 64 bits")
            return value
        try:
            return float(value)
        except OverflowError:
            raise RefusedError("wrong", value, f"{_SCALARS[float]} of at most 1.8e308") from None

    return read


@functools.cache
def field_types(kind: type) -> dict[str, Any]:
    """The types of the fields of a dataclass by name."""
    hints = typing.get_type_hints(kind)
    return {name: hint for name, hint in hints.items() if hint is not typing.ClassVar}


def missing_fields(kind: Any, given: Iterable[str]) -> list[str]:
    """The fields of a dataclass without a default that are not in `given`."""
    fields = [f for f in dataclasses.fields(kind) if f.name not in given]
    return [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]


def members_of(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type that `annotation` is."""
    is_union = get_origin(annotation) in (typing.Union, types.UnionType)
    return get_args(annotation) if is_union else (annotation,)


def classes_of(annotation: Any) -> list[type]:
    """The dataclasses among the members of a type."""
    members = members_of(annotation)
    return [m for m in members if dataclasses.is_dataclass(m) and isinstance(m, type)]


def class_named(classes: Sequence[type], name: str) -> type:
    """The class called `name`, whatever its capital letters, or `RefusedError`."""
    for kind in classes:
        if name.lower() == kind.__name__.lower():
            return kind
    raise RefusedError("unknown class", name, [kind.__name__ for kind in classes])


def type_name(annotation: Any) -> str:
    """The name of a type for messages: "a list of text", "a number or none"."""
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(repr, get_args(annotation)))
    if get_origin(annotation) is tuple:
        return f"a list of {type_name(get_args(annotation)[0])}"
    if len(members := members_of(annotation)) > 1:
        return " or ".join(map(type_name, members))
    if annotation is type(None):
        return "none"
    return _SCALARS.get(annotation) or str(getattr(annotation, "__name__", annotation))


def shown(value: object) -> str:
    """`value` as a message shows it: at most 80 characters."""
    try:
        return cut(repr(value))
    except ValueError:  # Python prints no integer of over 4,300 digits
        return "a number of thousands of digits"


def cut(text: str) -> str:
    """At most 80 characters of `text`."""
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
