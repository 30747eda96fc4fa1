"""From a word on the command line to a resolved recipe: a name, or a file of the user's own."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from stamm.base.config import override
from stamm.base.errors import ConfigError, StammError
from stamm.recipes import catalog


@dataclass(frozen=True)
class Resolved:
    """A recipe with the changes of the command line applied.

    name     how it is called in run folders and messages
    config   the resolved tree
    """

    name: str
    config: catalog.Config
    overrides: tuple[str, ...]


def resolve(word: str, overrides: Sequence[str]) -> Resolved:
    """The recipe `word` names ("demo", "mine.py", "mine.py:small") with `overrides` applied.

    Raises   ConfigError for an unknown name, a file without a recipe or with a mistake in it, an
             unknown key, a bad value.
    """
    name, build = _find(word)
    file = Path(word.partition(":")[0])
    config = build() if file.suffix != ".py" else _guarded(file, build)
    if not isinstance(config, catalog.Config):
        raise ConfigError(
            f"{word} returns {type(config).__name__}, not a recipe",
            fix="Return a Study, a CorpusRecipe or a PretrainConfig",
        )
    return Resolved(name, override(config, overrides), tuple(overrides))


def source_file(word: str) -> Path:
    """The file in which the recipe called `word` is written."""
    return Path(inspect.getfile(catalog.get(word).build))


def _find(word: str) -> tuple[str, Any]:
    path, _, function = word.partition(":")
    if not path.endswith(".py"):
        recipe = catalog.get(word)
        return recipe.name, recipe.build
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"{path} does not exist", fix="`stamm cp demo mine.py` makes one")
    module = _load(file)
    own = {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and not inspect.signature(value).parameters
    }
    if not function:
        function = file.stem if file.stem in own else next(iter(own), "")
    if function not in own:
        raise ConfigError(
            f"{path} has no recipe {function!r}" if function else f"{path} has no recipe",
            fix=f"Known there: {', '.join(own)}" if own else "Write a function that returns one",
        )
    return f"{file.stem}.{function}", own[function]


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"stamm_recipe_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    _guarded(file, functools.partial(spec.loader.exec_module, module))
    return module


def _guarded(file: Path, work: Callable[[], Any]) -> Any:
    """What `work`, code of the user's file, returns. Whatever it raises is told in one line."""
    try:
        return work()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if Path(f.filename).resolve() == file.resolve()]
        where = f"{file}, line {lines[-1]}" if lines else str(file)
        if isinstance(error, StammError):
            raise ConfigError(error.what, where=error.where or where, fix=error.fix) from error
        raise ConfigError(
            f"{type(error).__name__}: {error}", where=where, fix="Mend the file"
        ) from error
