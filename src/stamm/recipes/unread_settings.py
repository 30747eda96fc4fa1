"""Settings of a recipe that no step of its run reads: they are refused before the first step.

A setting is read when another value gives other steps. Checked are the settings that
were overridden, and in a recipe of the user's own all that are not the defaults of their classes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from stamm.base.config import as_read
from stamm.base.errors import ConfigError, StammError
from stamm.pages.config import ReportConfig
from stamm.recipes.compare import Comparison
from stamm.recipes.search import Search
from stamm.recipes.study import Study
from stamm.runs.job import Step

_CHECKED = (("tolerance",), ("matched", "tolerance"))  # bounds that are only checked
_PLACED = "execution"  # where shards run
_NO_DEFAULT: Any = dataclasses.MISSING


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
    """A configuration and where its values are from.

    before      the same before the overrides
    overrides   "key=value", as on the command line
    source      the user's own file or recipe that gave `before`; "": a shipped recipe
    """

    config: Any
    before: Any
    overrides: Sequence[str]
    source: str = ""


def check_settings(recipe: Given, steps_of: Callable[[Any], Iterable[Step]]) -> None:
    """Refuse a setting that no step reads.

    Edge     a setting that repeats what the run has without it is accepted
    Raises   ConfigError naming it, and where it was set
    """
    for name, where in unread_settings(recipe, steps_of):
        raise ConfigError(
            f"no step of this run reads {name}",
            where=where,
            fix="Leave it out, or set what it belongs to",
        )


def unread_settings(
    recipe: Given, steps_of: Callable[[Any], Iterable[Step]]
) -> Iterator[tuple[str, str]]:
    """The settings that no step reads, each with where it was set."""
    config, described = recipe.config, _described(steps_of(recipe.config))
    overridden = dict(_settings(config, recipe.before))
    own = dict(_settings(config, _NO_DEFAULT)) if recipe.source else {}

    def is_read(path: Sequence[str], default: Any) -> bool:
        others = _other_values(config, path)
        if default is _NO_DEFAULT and not others:
            return True  # there is nothing to compare it with
        for value in (default, *others):
            if value is _NO_DEFAULT:
                continue
            try:
                changed = _with(config, path, value)
            except StammError:
                if value is default:
                    return True  # it is needed
                continue
            try:
                changes = _described(steps_of(changed)) != described
            except StammError:
                return True  # such as a checkpoint that does not exist
            if changes or _is_repeated(config, changed, path):
                return True
        return False

    for path, default in {**own, **overridden}.items():
        value, name = _at(config, path), ".".join(path)
        checked = isinstance(config, Study | Comparison | Search) and path[-2:] in _CHECKED
        if value is None or path[0] == _PLACED or checked:
            continue  # what is not there can be switched off
        if not is_read(path, default):
            in_file = f"{name} = {value!r} in {recipe.source}"
            yield name, f"set by {_assignment(recipe, name)}" if path in overridden else in_file


def check_changes(config: Any, given: Any, changes: Sequence[str]) -> None:
    """Refuse a change of a verb's settings that the verb does not read.

    given    the settings without `changes`

    Raises   ConfigError naming it
    """
    verb = Given(config=config, before=given, overrides=changes)

    def step(changed: Any) -> list[Step]:
        return [Step(name="", job="", config=changed, folder="", outputs=())]

    for name, where in unread_settings(verb, step):
        raise ConfigError(
            f"{name} is not read with these settings",
            where=where,
            fix="Leave it out, or set what it belongs to",
        )


def _is_repeated(config: Any, changed: Any, path: Sequence[str]) -> bool:
    """Whether a run has the value at `path` also where another one is set."""
    if not isinstance(config, Comparison | Search):
        return False
    value, used = _at(config, path), _at(changed.as_run(), path)
    return type(used) is type(value) if dataclasses.is_dataclass(value) else bool(used == value)


def _assignment(recipe: Given, name: str) -> str:
    """The last override that set the value called `name`."""
    keys = [(text.partition("=")[0], text) for text in recipe.overrides]
    matching = [text for key, text in keys if f"{name}.".startswith(f"{key}.")]
    return matching[-1] if matching else ", ".join(recipe.overrides)


def _settings(config: Any, base: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Paths of the values of `config` that `base` does not have, with what it has there.

    base   _NO_DEFAULT: the defaults of the classes
    """
    if isinstance(config, tuple) and any(map(dataclasses.is_dataclass, config)):
        same = isinstance(base, tuple) and len(base) == len(config)
        for index, item in enumerate(config):
            yield from _settings(item, base[index] if same else _NO_DEFAULT, (*path, str(index)))
    elif dataclasses.is_dataclass(config):
        if type(base) is not type(config) and base is not _NO_DEFAULT:
            yield path, base
        for field in dataclasses.fields(config):
            inside = getattr(base, field.name) if type(base) is type(config) else _default(field)
            yield from _settings(getattr(config, field.name), inside, (*path, field.name))
    elif base is _NO_DEFAULT or config != base:
        yield path, base


def _default(field: dataclasses.Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _at(config: Any, path: Sequence[str]) -> Any:
    for key in path:
        config = config[int(key)] if isinstance(config, tuple) else getattr(config, key)
    return config


def _with(config: Any, path: Sequence[str], value: Any) -> Any:
    """`config` with another value at `path`; every class on the way is checked again."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(config, tuple):
        index = int(key)
        return (*config[:index], _with(config[index], rest, value), *config[index + 1 :])
    return dataclasses.replace(config, **{key: _with(getattr(config, key), rest, value)})


def _other_values(config: Any, path: Sequence[str]) -> list[Any]:
    """Values of the same type, for a setting whose value has the effect of its default."""
    value, parent = _at(config, path), _at(config, path[:-1])
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2, value * 10, value // 2, value + 1]
    if isinstance(value, float):
        return [value * 2, value * 10, value / 2]
    if isinstance(value, str) and dataclasses.is_dataclass(parent):
        hint = get_type_hints(type(parent))[path[-1]]
        literals = [kind for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal]
        return [word for kind in literals for word in get_args(kind) if word != value]
    changed = []
    for field in dataclasses.fields(value) if dataclasses.is_dataclass(value) else ():
        for other in _other_values(value, (field.name,)):
            with contextlib.suppress(StammError):
                changed.append(_with(value, (field.name,), other))
    return changed


def _described(steps: Iterable[Step]) -> list[Step]:
    """Steps with what their jobs read: without the hash of the whole recipe, which covers every setting."""
    described, steps = [], list(steps)
    jobs = {step.job for step in steps}
    for step in steps:
        config = as_read(step.config)
        if isinstance(config, ReportConfig) and step.job:
            config = config.shown_of(step.job, jobs)
        if hasattr(config, "config_sha256"):
            config = dataclasses.replace(config, config_sha256="")
        described.append(dataclasses.replace(step, config=config))
    return described
