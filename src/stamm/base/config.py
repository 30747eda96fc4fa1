"""Configuration as frozen dataclasses: to and from plain values, overrides by path, differences.

A configuration class is `@dataclass(frozen=True, kw_only=True)`; its fields are int, float, str,
bool, None, Literal, tuples of these, other configuration classes, or unions of them. In plain
form a member of a union of classes carries its class name under "kind"; in a union of a class and
str an override sets the text. `MAIN_FIELD` is the field that an error offers for a value given in
place of the class ("batch=4"). A class with `REFERENCE_KEY` can be chosen by a reference to user code,
"mine.py:Name", which becomes the value of that field.

Field names and types are the schema: an unknown key, a wrong type or a missing value is a
ConfigError that names the path and, for a misspelt name, the nearest one that exists.
"""

from __future__ import annotations

import ast
import contextlib
import contextvars
import dataclasses
import difflib
import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from stamm.base.bounds import exceeded_bounds
from stamm.base.decoder import (
    KIND,
    RefusedError,
    class_named,
    classes_of,
    decoder,
    field_types,
    members_of,
    missing_fields,
    shown,
    type_name,
)
from stamm.base.errors import ConfigError
from stamm.base.units import parse_count

C = TypeVar("C")
_STORED: contextvars.ContextVar[bool] = contextvars.ContextVar("stored", default=False)
_CLOSE = 0.65  # share of letters that a misspelt name has in common with the meant one
_HOME = re.compile(r"(?:^|(?<=[=,\[\"']))~(?=/|$)")
_LISTED = 40  # names in one message
_FORMS, _FIELDS = 3, 8  # assignments, and names of fields, that one message offers


def validate(config: object, *checks: tuple[str, bool, str]) -> None:
    """Raise one ConfigError that lists every bound that a field of `config` exceeds, and every failed check.

    checks   (field, holds, message): the message completes "field = value ..."; "train.loss" is the
             field of a field
    """
    problems = exceeded_bounds(type(config), functools.partial(getattr, config)) + [
        f"{type(config).__name__}.{name} = {operator.attrgetter(name)(config)!r} {message}"
        for name, holds, message in checks
        if not holds
    ]
    if problems:
        raise ConfigError("; ".join(problems))


class Bounded:
    """A configuration that is checked by the bounds of its fields (`base/bounds.py`) alone."""

    def __post_init__(self) -> None:
        validate(self)


def raise_together(problems: Sequence[ConfigError]) -> None:
    """Raise one ConfigError that lists all `problems`, each with its place and fix; nothing without any."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        listed = [
            f"({number}) {error.line().rstrip('.')}" for number, error in enumerate(problems, 1)
        ]
        raise ConfigError(f"{len(problems)} problems: {'; '.join(listed)}")


def check_all(*checks: Callable[[], object]) -> None:
    """Call every check; raise one ConfigError with the problems of all of them."""
    problems = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            problems.append(error)
    raise_together(problems)


def check_unread(config: object, *unread: tuple[str, bool, str]) -> None:
    """Raise one ConfigError that lists the fields of `config` that are set, and are not read.

    unread   (field, whether it is not read, why): the message completes "field = value is not read: ..."
    """
    default = {f.name: f.default for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    validate(
        config,
        *(
            (name, not holds or getattr(config, name) == default[name], f"is not read: {why}")
            for name, holds, why in unread
        ),
    )


def as_read(config: C) -> C:
    """`config` with the defaults in place of what its own settings leave unread.

    A configuration class with such fields has the method `unread()`, which gives their names.
    """
    fields = dataclasses.fields(config)  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    for f in fields:
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value) and (used := as_read(value)) is not value:
            changes[f.name] = used
    unread: Sequence[str] = getattr(config, "unread", tuple)()
    changes |= {f.name: f.default for f in fields if f.name in unread}
    return dataclasses.replace(config, **changes) if changes else config  # type: ignore[type-var]


def home_expanded(text: str) -> str:
    """`text` with the home folder in place of a "~" before "/" at the start of a value or of a list's item.

    A shell expands neither data=~/a.jsonl nor --out=~/run.
    """
    return _HOME.sub(lambda _: str(Path.home()), text)


def with_home(value: Any) -> Any:
    """A configuration whose texts are expanded by `home_expanded`; the same object where none changes."""
    if isinstance(value, str):
        return home_expanded(value)
    if isinstance(value, tuple):
        items = tuple(with_home(item) for item in value)
        return items if items != value else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value) if f.init]
        changes = {
            name: new
            for name in fields
            if (new := with_home(old := getattr(value, name))) is not old and new != old
        }
        return dataclasses.replace(value, **changes) if changes else value
    return value


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: "Did you mean 'demo'? Known: ...", at most 40 names."""
    names = sorted(known)
    match = closest(name, names)
    hint = f"Did you mean {match!r}? " if match else ""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{hint}Known: {', '.join(names[:_LISTED])}{more}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` most likely misspells, ignoring case; None when none is close.

    Edge   "nosuch" and "logish" share half of their letters and are not close; of close names one
           with swapped letters comes first
    """
    names = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=_CLOSE)
    close.sort(key=lambda candidate: sorted(candidate) != sorted(name.lower()))
    return names[close[0]] if close else None


def to_plain(config: Any, annotation: Any = None) -> Any:
    """The configuration as JSON values: dicts, lists, numbers, strings, booleans and None.

    annotation   the declared type; a member of a union of classes is tagged with its class name
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        hints = field_types(type(config))
        body = {
            f.name: to_plain(getattr(config, f.name), hints[f.name])
            for f in dataclasses.fields(config)
        }
        if len(classes_of(annotation)) > 1:
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
    token = _STORED.set(True)
    try:
        value: C = decoder(kind, "setting")(plain)  # type: ignore[arg-type]  # a class is hashable
    except RefusedError as refused:
        raise _error(refused, where) from None
    except ConfigError as error:
        if error.where or not where:
            raise
        raise ConfigError(error.what, where=where, fix=error.fix) from None
    finally:
        _STORED.reset(token)
    return value


def _error(refused: RefusedError, where: str) -> ConfigError:
    """The error for a setting, which its dotted path names."""
    path, value, fix = ".".join(map(str, reversed(refused.keys))), refused.value, ""
    match refused.problem:
        case "unknown key":
            what, fix = f"unknown key {_join(path, value)!r}", nearest(value, refused.wanted)
        case "unknown class":
            what, fix = f"{path} = {value!r} is not a known class", nearest(value, refused.wanted)
        case "missing keys":
            names = [_join(path, name) for name in value]
            what = f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no value"
            fix = f"Give {names[0]}"
        case _:
            what = f"{path or 'configuration'} = {shown(value)} is not {refused.wanted}"
    return ConfigError(what, where=where, fix=fix)


def is_reading_stored() -> bool:
    """Whether `from_plain` is running: what is stored is data, and must not execute user code."""
    return _STORED.get()


def override(config: C, assignments: Sequence[str], where: str = "set on the command line") -> C:
    """`config` with every "path=value" applied, then checked as a whole.

    Values are typed by the field: `model.ffn.width=384`, `audit.repeats=[1,4]`,
    `corpus.inputs=a.jsonl,b.warc.gz`, `export=none`. Whole numbers may be written 1.5M or 2e6.
    A union of classes is chosen by class name (`model.ffn=GatedFFN`), which resets it to the
    defaults of that class, and its fields follow.

    Edge     no check runs between assignments, so values that must agree can be changed together, in
             any order.
    Raises   ConfigError for a line without "=", an unknown key, a path that is given twice or that
             resets what an assignment before it has set, a value of another type or one that a class
             refuses; then it names the assignments that led there.
    """
    draft: Any = config
    given: list[str] = []
    problems: list[ConfigError] = []
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        try:
            if not equals or not path:
                raise ConfigError(
                    f"{assignment!r} is not an assignment", where=where, fix="Write key=value"
                )
            for before in given:
                if path == before:
                    raise ConfigError(f"{path} is given twice", where=where, fix="Leave one out")
                if _is_below(before, path):
                    raise ConfigError(
                        f"{assignment} resets {before}, which is given before it",
                        where=where,
                        fix=f"Put {assignment} first",
                    )
            draft = _put(draft, type(config), path.split("."), home_expanded(text), path, where)
        except ConfigError as error:
            problems.append(error)
        given.append(path)
    raise_together(problems)
    changed: C = _constructed(draft, "", given, where)
    return changed


def assignments(changes: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Overrides as `override` takes them, from "path=value" and from keyword settings.

    settings   a list or tuple is the list of its items, a class a union's choice, None "none", which
               only an optional field takes:
               `tasks=["blimp", "mine.jsonl"]`, `matched=EqualFlops`, `**{"reward.column": "final"}`
    """
    return [*changes, *(f"{name}={_setting_text(value)}" for name, value in settings.items())]


def _setting_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return repr([_setting_text(item) for item in value])
    return value.__name__ if isinstance(value, type) else str(value)


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


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


@dataclasses.dataclass
class _Draft:
    """A configuration being overridden: its class and unchecked values."""

    kind: type
    values: dict[str, Any]


@dataclasses.dataclass
class _Items:
    """A tuple being overridden, and the type of its elements."""

    element: Any
    items: list[Any]


def _put(node: Any, annotation: Any, keys: list[str], text: str, path: str, where: str) -> Any:
    """`node`, or a draft of it, in which the value at `keys` is the one that `text` means.

    path   the whole path of the assignment, for errors
    """
    if not keys:
        return _parse(annotation, text, path, where, absent=node is None)
    node, key, rest = _opened(node, annotation), keys[0], keys[1:]
    if isinstance(node, _Items):
        # The index after the last item appends one.
        positions = [str(index) for index in range(len(node.items) + 1)]
        if key not in positions:
            raise ConfigError(
                f"unknown key {path!r}: {key!r} is not a position in a list of {len(node.items)}",
                where=where,
                fix=f"The next one is {positions[-1]}",
            )
        index = positions.index(key)
        if index == len(node.items):
            classes = classes_of(node.element)
            node.items.append(_Draft(classes[0], {}) if len(classes) == 1 else None)
        node.items[index] = _put(node.items[index], node.element, rest, text, path, where)
        return node
    if not isinstance(node, _Draft):
        raise _below_a_value(node, annotation, keys, path, where)
    hints = field_types(node.kind)
    if key not in hints:
        raise ConfigError(f"unknown key {path!r}", where=where, fix=nearest(key, hints))
    node.values[key] = _put(_held(node, key), hints[key], rest, text, path, where)
    return node


def _opened(node: Any, annotation: Any) -> Any:
    if dataclasses.is_dataclass(node) and not isinstance(node, (type, _Draft, _Items)):
        values = {f.name: getattr(node, f.name) for f in dataclasses.fields(node)}
        return _Draft(type(node), values)
    if isinstance(node, tuple):
        lists = [m for m in members_of(annotation) if get_origin(m) is tuple]
        return _Items(get_args(lists[0])[0], list(node))
    return node


def _held(draft: _Draft, name: str) -> Any:
    """Value of a field in a draft: given, default, or None."""
    if name in draft.values:
        return draft.values[name]
    declared = next(f for f in dataclasses.fields(draft.kind) if f.name == name)
    if declared.default_factory is not dataclasses.MISSING:
        return declared.default_factory()
    return None if declared.default is dataclasses.MISSING else declared.default


def _below_a_value(
    node: Any, annotation: Any, keys: list[str], path: str, where: str
) -> ConfigError:
    classes = [kind.__name__ for kind in classes_of(annotation)]
    if node is not None or not classes:
        return ConfigError(f"unknown key {path!r}: {keys[0]!r} is below a plain value", where=where)
    above = path.removesuffix("." + ".".join(keys))
    return ConfigError(
        f"{path} cannot be set: there is no {above}",
        where=where,
        fix=f"Put {above}={' or '.join(classes)} before it",
    )


def _constructed(node: Any, path: str, given: list[str], where: str) -> Any:
    """The configuration built from a draft; every class in it is constructed once.

    path    of the draft in the tree
    given   paths of all assignments, to name those that cause an error
    Raises  ConfigError with the problems of all classes whose fields could be constructed
    """
    problems: list[ConfigError] = []
    built = _build(node, path, given, where, problems)
    raise_together(problems)
    return built


def _build(node: Any, path: str, given: list[str], where: str, problems: list[ConfigError]) -> Any:
    """The value of a draft, or None where an error was added to `problems`."""
    before = len(problems)
    if isinstance(node, _Items):
        return tuple(
            _build(item, _join(path, str(index)), given, where, problems)
            for index, item in enumerate(node.items)
        )
    if not isinstance(node, _Draft):
        return node
    # An assignment above this place chose its class.
    inside = [p for p in given if _is_below(p, path) or _is_below(path, p)]
    if missing := missing_fields(node.kind, node.values):
        refused = RefusedError("missing keys", missing, keys=[path] if path else [])
        problems.append(_error(refused, _blame(inside, where)))
    values = {
        name: _build(value, _join(path, name), given, where, problems)
        for name, value in node.values.items()
    }
    try:
        if len(problems) > before:  # its relations cannot be checked, the bounds of its fields can
            if exceeded := exceeded_bounds(node.kind, values.get):
                raise ConfigError("; ".join(exceeded))
            return None
        return node.kind(**values)
    except ConfigError as error:
        if error.where:
            problems.append(error)
        else:
            words = set(re.findall(r"\w+", f"{error.what} {error.fix}"))
            named = [p for p in inside if words & set(p.split(".")[-1:])]
            blamed = _blame(named or inside, where)
            problems.append(ConfigError(error.what, where=blamed, fix=error.fix))
    return None


def _is_below(path: str, above: str) -> bool:
    return not above or path == above or path.startswith(f"{above}.")


def _blame(paths: list[str], where: str) -> str:
    return f"{', '.join(dict.fromkeys(paths))} {where}".strip()


def _parse(annotation: Any, text: str, path: str, where: str, *, absent: bool = False) -> Any:
    """The value that `text` means for a field of this type; a draft for a class or a tuple.

    absent   the field is None so far: its class must be set before the fields of that class
    """
    members = members_of(annotation)
    if type(None) in members and text.lower() in ("none", "null"):
        return None
    classes = classes_of(annotation)
    if classes and str not in members:
        if ":" in text or text.endswith(".py"):
            for kind in classes:
                if key := getattr(kind, "REFERENCE_KEY", ""):
                    return _Draft(kind, {key: text})
        return _Draft(_class_named(classes, text, path, path, where, absent=absent), {})
    for member in members:
        if get_origin(member) is tuple:
            return _parse_items(get_args(member)[0], text, path, where)
        with contextlib.suppress(ConfigError, KeyError, ValueError):
            return _parse_scalar(member, text)
    raise ConfigError(f"{path} = {text!r} is not {type_name(annotation)}", where=where)


def _parse_scalar(member: Any, text: str) -> Any:
    """The value that `text` means for one member of a union; KeyError, ValueError or ConfigError without one."""
    if get_origin(member) is Literal:
        return {str(choice): choice for choice in get_args(member)}[text]
    if member is bool:
        return {"true": True, "false": False}[text.lower()]
    if member is int:
        return -parse_count(text[1:]) if text.startswith("-") else parse_count(text)
    if member is str and text != str(None):  # a keyword setting that was left open
        return text
    return {float: float}[member](text)


def _parse_items(element: Any, text: str, path: str, where: str) -> _Items:
    """The list that `text` means: its parts, between commas, for elements of this type."""
    parts, classes = _split(text), classes_of(element)
    if not classes or str in members_of(element):
        return _Items(element, [_parse(element, part, path, where) for part in parts])
    items: list[Any] = []
    for index, part in enumerate(parts):
        if ":" in part or part.endswith(".py"):
            items.append(_parse(element, part, path, where))
        else:
            kind = _class_named(classes, part, path, f"{path}.{index}", where)
            items.append(_Draft(kind, {}))
    return _Items(element, items)


def _class_named(
    classes: list[type], text: str, path: str, location: str, where: str, *, absent: bool = False
) -> type:
    """The class that `text` names; else a ConfigError with the assignments that it may stand for.

    location  path of the value: `path`, or an item of the list there
    absent    as in `_parse`
    """
    try:
        return class_named(classes, text)
    except RefusedError as refused:
        refused.keys.append(path)
        error = _error(refused, where)
        chosen = _fields_for(classes, text)
        before = f"{location}={classes[0].__name__} " if absent and len(classes) == 1 else ""
        forms = " or ".join(f"{before}{location}.{name}={text}" for name in chosen[:_FORMS])
        if len(classes) > 1:
            fix = error.fix
            if forms and len(chosen) <= _FORMS and "Did you mean" not in fix:
                fix += f"; or write {forms}"
            raise ConfigError(error.what, where=where, fix=fix) from None
        what = f"each item of {path}" if location != path else path
        fix = f"Write {forms}"
        if not chosen or len(chosen) > _FORMS:
            names = chosen or [f.name for f in dataclasses.fields(classes[0])]
            more = f" and {len(names) - _FIELDS} more" if len(names) > _FIELDS else ""
            fix = f"Set {before}{', '.join(f'{location}.{name}' for name in names[:_FIELDS])}{more}"
        raise ConfigError(
            f"{path} = {text!r} is not a value: {what} has fields of its own", where=where, fix=fix
        ) from None


def _fields_for(classes: list[type], text: str) -> list[str]:
    """The fields, of all of these classes, that `text` can be a value of, of the likeliest kind.

    First the field of which the text is one of the choices, then the class's MAIN_FIELD, then fields
    without a default, then numbers; other texts, and numbers as text, are left out.
    """
    ranked: dict[int, dict[str, None]] = {}
    is_number = re.fullmatch(r"[-+.\d][\d._]*([eE][-+]?\d+)?[kMBGT]?", text) is not None
    for kind in classes:
        hints, fields = field_types(kind), dataclasses.fields(kind)
        needed = set(missing_fields(kind, ()))
        for f in fields:
            members = members_of(hints[f.name])
            if classes_of(hints[f.name]) and str not in members:
                continue
            if not all(f.name in field_types(other) for other in classes):
                continue
            try:
                value = _constructed(_parse(hints[f.name], text, f.name, ""), f.name, [], "")
                if needed <= {f.name}:
                    kind(**{f.name: value})
            except ConfigError:
                continue
            is_text = isinstance(value[0] if isinstance(value, tuple) and value else value, str)
            if any(get_origin(m) is Literal and value in get_args(m) for m in members):
                rank = 0
            elif is_text and is_number:
                continue
            elif f.name == getattr(kind, "MAIN_FIELD", ""):
                rank = 1
            elif f.name in needed:
                rank = 2
            elif is_text:
                continue
            else:
                rank = 3
            ranked.setdefault(rank, {})[f.name] = None
    return list(ranked[min(ranked)]) if ranked else []


def _split(text: str) -> list[str]:
    if text.startswith("[") and text.endswith("]"):
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            value = text[1:-1].split(",")
        return [str(part).strip() for part in value]
    return [part.strip() for part in text.split(",")] if text else []
