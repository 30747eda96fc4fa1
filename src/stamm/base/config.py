"""Configuration as frozen dataclasses: to and from plain values, overrides by path, differences.

A configuration class is `@dataclass(frozen=True, kw_only=True)`; its fields are int, float, str,
bool, None, Literal, tuples of these, other configuration classes, or unions of them. In plain
form a member of a union of classes carries its class name under "kind".

Field names and types are the schema: an unknown key, a wrong type or a missing value is a
ConfigError that names the path and, for a misspelt name, the nearest one that exists.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

from stamm.base.errors import ConfigError
from stamm.base.units import parse_count

C = TypeVar("C")
KIND = "kind"


def validate(config: object, *checks: tuple[str, bool, str]) -> None:
    """Raise one ConfigError that tells every failed check of `config`.

    checks   (field, holds, message): the message completes "field = value ..."
    """
    problems = [
        f"{type(config).__name__}.{name} = {getattr(config, name)!r} {message}"
        for name, holds, message in checks
        if not holds
    ]
    if problems:
        raise ConfigError("; ".join(problems))


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: "Did you mean 'demo'? Known: ..."."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names)}"


def to_plain(config: Any, annotation: Any = None) -> Any:
    """The configuration as JSON values: dicts, lists, numbers, strings, booleans and None.

    annotation   the declared type; a member of a union of classes is tagged with its class name
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        hints = _hints(type(config))
        body = {
            f.name: to_plain(getattr(config, f.name), hints[f.name])
            for f in dataclasses.fields(config)
        }
        if len(_classes(annotation)) > 1:
            return {KIND: type(config).__name__, **body}
        return body
    if isinstance(config, tuple):
        element = get_args(annotation)[0] if get_args(annotation) else None
        return [to_plain(item, element) for item in config]
    if config is None or isinstance(config, (bool, int, float, str)):
        return config
    raise TypeError(f"{type(config).__name__} is not a configuration value")


def from_plain(kind: type[C], plain: Any, where: str = "") -> C:
    """The configuration of class `kind` from its plain form. Inverse of `to_plain`.

    where   named in errors ("config.json")
    """
    value: C = _build(kind, plain, "", where)
    return value


def override(config: C, assignments: Sequence[str], where: str = "set on the command line") -> C:
    """`config` with each "path=value" applied, in order.

    Values are typed by the field: `model.ffn.width=384`, `audit.repeats=[1,4]`,
    `corpus.inputs=a.jsonl,b.warc.gz`, `export=none`. Whole numbers may be written 1.5M or 2e6.
    A union of classes is chosen by class name (`model.ffn=GatedFFN`), which resets it to the
    defaults of that class, and its fields follow.

    Raises   ConfigError for a line without "=", an unknown key or a value of another type.
    """
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise ConfigError(
                f"{assignment!r} is not an assignment", where=where, fix="Write key=value"
            )
        config = _assign(config, path.split("."), text, path, where)
    return config


def flatten(plain: Any, prefix: str = "") -> dict[str, Any]:
    """A plain configuration as one level of dotted keys. Lists of plain numbers stay whole."""
    if isinstance(plain, Mapping):
        items: Iterable[tuple[str, Any]] = ((str(k), v) for k, v in plain.items())
    elif isinstance(plain, list) and any(isinstance(v, (Mapping, list)) for v in plain):
        items = ((str(i), v) for i, v in enumerate(plain))
    else:
        return {prefix: plain}
    flat: dict[str, Any] = {}
    for key, value in items:
        flat.update(flatten(value, f"{prefix}.{key}" if prefix else key))
    return flat


def differences(left: Any, right: Any) -> list[tuple[str, Any, Any]]:
    """Keys in which two plain configurations differ, with both values ("-" where absent)."""
    a, b = flatten(left), flatten(right)
    return [
        (key, a.get(key, "-"), b.get(key, "-"))
        for key in sorted(a.keys() | b.keys())
        if a.get(key, "-") != b.get(key, "-")
    ]


def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _classes(annotation: Any) -> list[type]:
    return [m for m in _members(annotation) if dataclasses.is_dataclass(m) and isinstance(m, type)]


def _name(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(repr(a) for a in get_args(annotation))
    if get_origin(annotation) is tuple:
        return f"a list of {_name(get_args(annotation)[0])}"
    return " or ".join(getattr(m, "__name__", str(m)) for m in _members(annotation))


def _build(annotation: Any, plain: Any, path: str, where: str) -> Any:
    members = _members(annotation)
    if plain is None and (type(None) in members or annotation is None):
        return None
    classes = _classes(annotation)
    if classes and isinstance(plain, Mapping):
        return _build_class(classes, plain, path, where)
    for member in members:
        if get_origin(member) is Literal and plain in get_args(member):
            return plain
        if get_origin(member) is tuple and isinstance(plain, (list, tuple)):
            element = get_args(member)[0]
            return tuple(_build(element, v, f"{path}.{i}", where) for i, v in enumerate(plain))
        if member is float and isinstance(plain, (int, float)) and not isinstance(plain, bool):
            return float(plain)
        if member in (int, str, bool) and type(plain) is member:
            return plain
    raise ConfigError(
        f"{path or 'configuration'} = {plain!r} is not {_name(annotation)}", where=where
    )


def _build_class(classes: list[type], plain: Mapping[str, Any], path: str, where: str) -> Any:
    body = dict(plain)
    kind = classes[0]
    if len(classes) > 1:
        kind = _choose(classes, str(body.pop(KIND, "")), path, where)
    hints = _hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind)}
    for key in body:
        if key not in known:
            raise ConfigError(
                f"unknown key {_join(path, key)!r}", where=where, fix=nearest(key, known)
            )
    missing = [
        name
        for name, f in known.items()
        if name not in body
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{_join(path, missing[0])} has no value", where=where)
    values = {k: _build(hints[k], v, _join(path, k), where) for k, v in body.items()}
    return _construct(kind, values, where)


def _construct(kind: type, values: dict[str, Any], where: str) -> Any:
    try:
        return kind(**values)
    except ConfigError as error:
        if error.where or not where:
            raise
        raise ConfigError(error.what, where=where, fix=error.fix) from None


def _choose(classes: list[type], name: str, path: str, where: str) -> type:
    for kind in classes:
        if kind.__name__.lower() == name.lower():
            return kind
    raise ConfigError(
        f"{path} = {name!r} is not a known class",
        where=where,
        fix=nearest(name, [c.__name__ for c in classes]),
    )


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _assign(config: Any, keys: list[str], text: str, path: str, where: str) -> Any:
    if isinstance(config, tuple):
        if not keys[0].isdigit() or int(keys[0]) >= len(config):
            raise ConfigError(
                f"unknown key {path!r}: {keys[0]!r} is no position in a list of {len(config)}",
                where=where,
            )
        index = int(keys[0])
        if len(keys) == 1:
            raise ConfigError(f"{path} cannot be set as a whole", where=where, fix="Set its fields")
        changed = _assign(config[index], keys[1:], text, path, where)
        return (*config[:index], changed, *config[index + 1 :])
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise ConfigError(f"unknown key {path!r}: {keys[0]!r} is below a plain value", where=where)
    hints = _hints(type(config))
    if keys[0] not in hints:
        raise ConfigError(f"unknown key {path!r}", where=where, fix=nearest(keys[0], hints))
    current = getattr(config, keys[0])
    if len(keys) > 1:
        value = _assign(current, keys[1:], text, path, where)
    else:
        value = _parse(hints[keys[0]], text, path, where)
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return _construct(type(config), {**fields, keys[0]: value}, f"{path} {where}")


def _parse(annotation: Any, text: str, path: str, where: str) -> Any:
    members = _members(annotation)
    if type(None) in members and text.lower() in ("none", "null"):
        return None
    classes = _classes(annotation)
    if classes:
        return _build_class([_choose(classes, text, path, where)], {}, path, where)
    wrong = ConfigError(f"{path} = {text!r} is not {_name(annotation)}", where=where)
    for member in members:
        if member is type(None):
            continue
        if get_origin(member) is Literal:
            for allowed in get_args(member):
                if text == str(allowed):
                    return allowed
            continue
        if get_origin(member) is tuple:
            element = get_args(member)[0]
            return tuple(_parse(element, part, path, where) for part in _split(text))
        if member is bool:
            if text.lower() in ("true", "false"):
                return text.lower() == "true"
        elif member is int:
            try:
                return -parse_count(text[1:]) if text.startswith("-") else parse_count(text)
            except ConfigError:
                continue
        elif member is float:
            try:
                return float(text)
            except ValueError:
                continue
        elif member is str:
            return text
    raise wrong


def _split(text: str) -> list[str]:
    if text.startswith("["):
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text[1:].removesuffix("]").split(",")
        return [str(part).strip() for part in value]
    return [part.strip() for part in text.split(",")] if text else []
