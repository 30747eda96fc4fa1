"""Resolve a recipe by name or from a user's Python file, and apply overrides."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, overload

from stamm.base.config import nearest, override, raise_together, with_home
from stamm.base.errors import ConfigError
from stamm.base.user_code import guarded, load_python
from stamm.recipes import catalog
from stamm.recipes.own_text import OwnText
from stamm.recipes.study import Study

C = TypeVar("C")
_SHORT = {
    "corpus.inputs": "inputs",
    "corpus.consent.robots": "robots",
    "corpus.probes.books": "planted",
}


@dataclass(frozen=True)
class Resolved:
    """A recipe with its overrides applied.

    name     its name in run folders and messages
    config   the resolved tree
    given    the tree before the overrides
    source   the user's own file or recipe that gave it; "": a built-in recipe
    is_own   whether `config` is the study that `OwnText` asks for
    """

    name: str
    config: catalog.Config
    overrides: tuple[str, ...]
    given: catalog.Config
    source: str = ""
    is_own: bool = False


def resolve(word: str, overrides: Sequence[str]) -> Resolved:
    """The recipe called `word` ("demo", "mine.py", "mine.py:small") with `overrides` applied.

    Raises   ConfigError for an unknown name, a file without a recipe or with a mistake in it, an
             unknown key, a bad value.
    """
    name, build = _find(word)
    file = Path(_parts(word)[0])
    build, rest = _with_parameters(build, overrides)
    config = build() if file.suffix != ".py" else with_home(guarded(file, build))
    if not isinstance(config, catalog.Config):
        raise ConfigError(
            f"{word} returns {type(config).__name__}, not a recipe",
            fix="Return a Study, a CorpusRecipe or a PretrainConfig",
        )
    source = str(file) if file.suffix == ".py" else ""
    return replace(overridden(name, config, rest, source), overrides=tuple(overrides))


def _with_parameters(
    build: Callable[..., Any], overrides: Sequence[str]
) -> tuple[Callable[[], Any], list[str]]:
    """The recipe's function with the overrides that name its parameters, and the other overrides.

    Parameters have a default, so that every recipe can be listed; values are typed by their annotations.
    """
    parameters = inspect.signature(build).parameters
    own = [text for text in overrides if _first_key(text) in parameters]
    if not own:
        return build, list(overrides)
    parameters = inspect.signature(build, eval_str=True).parameters
    fields = [
        (
            name,
            parameter.annotation,
            dataclasses.field(default_factory=functools.partial(copy, parameter.default)),
        )
        for name, parameter in parameters.items()
    ]
    kind = dataclasses.make_dataclass(build.__name__, fields, frozen=True)
    values = vars(override(kind(), own))
    return functools.partial(build, **values), [text for text in overrides if text not in own]


def overridden(
    name: str,
    config: catalog.Config,
    overrides: Sequence[str],
    source: str,
    where: str = "set on the command line",
) -> Resolved:
    """A recipe's configuration with `overrides`; of `OwnText` with inputs, the study.

    Raises   ConfigError as `override`
    """
    if not isinstance(config, OwnText):
        return Resolved(name, override(config, overrides, where), tuple(overrides), config, source)
    own_keys, study_keys = (
        {field.name for field in dataclasses.fields(kind)} for kind in (OwnText, Study)
    )
    own = [text for text in overrides if _first_key(text) in own_keys]
    rest = [text for text in overrides if text not in own]
    raise_together(
        [
            ConfigError(
                f"unknown key {key!r}", where=where, fix=nearest(key, own_keys | study_keys)
            )
            for text in rest
            if "=" in text and (key := _first_key(text)) not in study_keys
        ]
    )
    config = override(config, own, where)
    if not config.inputs and not rest:
        return Resolved(name, config, tuple(overrides), config, source)
    for text in rest:
        if (short := _SHORT.get(text.partition("=")[0])) is not None:
            raise ConfigError(f"{text} is set by {short}", where=where, fix=f"Set {short}=FILES")
    study = config.study()
    changed = override(study, rest, where)
    return Resolved(name, changed, tuple(overrides), study, source, is_own=True)


def _first_key(assignment: str) -> str:
    return assignment.partition("=")[0].partition(".")[0]


@overload
def build(recipe: Callable[[], C], /, *overrides: str) -> C: ...
@overload
def build(recipe: str, /, *overrides: str) -> Any: ...
def build(recipe: Callable[[], Any] | str, /, *overrides: str) -> Any:
    """The configuration of a recipe with overrides such as "pretrain.sequences=96".

    recipe   its name or file, as in `stamm run`; or its function, whose return
             type a type checker then sees
    """
    if isinstance(recipe, str):
        return resolve(recipe, overrides).config
    return overridden("", recipe(), overrides, "").config


def source_file(word: str) -> Path:
    """The source file of the built-in recipe `word`."""
    return Path(inspect.getfile(catalog.get(word).build))


def _parts(word: str) -> tuple[str, str]:
    """The file and the function of "mine.py:small"; a colon may also be part of the path."""
    path, _, function = word.rpartition(":")
    return (path, function) if path.endswith(".py") else (word, "")


def _find(word: str) -> tuple[str, Any]:
    path, function = _parts(word)
    if not path.endswith(".py"):
        recipe = catalog.get(word)
        return recipe.name, recipe.build
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"{path} does not exist", fix="`stamm cp demo mine.py` makes one")
    module = load_python(file)
    own = {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and all(p.default is not p.empty for p in inspect.signature(value).parameters.values())
    }
    plain = [name for name in own if not inspect.signature(own[name]).parameters]
    if not function and file.stem not in own and len(plain) == 1:
        function = plain[0]  # the others may be its helpers
    if not function and len(own) > 1 and file.stem not in own:
        raise ConfigError(
            f"{path} has {len(own)} recipes",
            fix="Name one: " + ", ".join(f"{path}:{name}" for name in own),
        )
    if not function:
        function = file.stem if file.stem in own else next(iter(own), "")
    if function not in own:
        raise ConfigError(
            f"{path} has no recipe {function!r}" if function else f"{path} has no recipe",
            fix=f"Known there: {', '.join(own)}" if own else "Write a function that returns one",
        )
    return f"{file.stem}.{function}", own[function]
