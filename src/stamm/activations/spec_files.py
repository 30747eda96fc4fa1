"""From a word to a Spec: a name of the catalogue, a Python file, or a stored spec.

A Python file is the user's own and is executed; a JSON file is only read.
"""

from __future__ import annotations

import functools
import importlib.util
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from stamm.activations import catalog
from stamm.activations.spec import Spec
from stamm.base.config import from_plain, nearest
from stamm.base.errors import ConfigError, DataError, StammError
from stamm.base.files import read_json

STORED = "spec.json"


def load_spec(text: str) -> Spec:
    """The spec that `text` names.

    xielu             an entry of the catalogue, by name or alias
    file.py           the only Spec in the user's own file, which is executed
    file.py:NAME      the Spec called NAME there
    spec.json         what `base.config.to_plain` made of a Spec
    folder            a folder that holds spec.json

    Raises   ConfigError when there is none, or when the spec is refused; DataError for a file that
             is not JSON.
    Checked  tests/unit/activations/test_spec_files.py
    """
    path, _, name = text.partition(":")
    if path.endswith(".py"):
        return _from_python(Path(path), name)
    if text.endswith(".json"):
        return _from_json(Path(text))
    if (Path(text) / STORED).is_file():
        return _from_json(Path(text) / STORED)
    known = {alias: entry for entry in catalog.names() for alias in _called(entry)}
    if text in known:
        return catalog.get(text)
    if Path(text).is_dir():
        raise ConfigError(f"{text} holds no {STORED}", fix="Name a folder that has one")
    raise ConfigError(
        f"{text!r} is no activation, no Python file and no stored spec", fix=nearest(text, known)
    )


def load_python(file: Path) -> ModuleType:
    """The user's own Python file, executed.

    Raises   ConfigError that tells whatever it raises in one line, with the line it came from.
    """
    if not file.is_file():
        raise ConfigError(f"{file} does not exist")
    spec = importlib.util.spec_from_file_location(f"stamm_own_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    guarded(file, functools.partial(spec.loader.exec_module, module))
    return module


def guarded(file: Path, work: Callable[[], Any]) -> Any:
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


def _called(name: str) -> tuple[str, ...]:
    return (name, *catalog.get(name).aliases)


def _from_python(file: Path, name: str) -> Spec:
    module = load_python(file)
    own = {key: value for key, value in vars(module).items() if isinstance(value, Spec)}
    if name:
        if name not in own:
            raise ConfigError(
                f"{file} has no Spec {name!r}",
                fix=nearest(name, own) if own else f"Write {name} = Spec(...) in it",
            )
        return own[name]
    different = {id(value): value for value in own.values()}
    if len(different) != 1:
        found = f"{len(different)} Specs" if different else "no Spec"
        raise ConfigError(
            f"{file} has {found}",
            fix=f"Name one: {', '.join(f'{file}:{key}' for key in own)}"
            if own
            else "Write NAME = Spec(...) in it",
        )
    return next(iter(different.values()))


def _from_json(file: Path) -> Spec:
    plain = read_json(file)
    if not isinstance(plain, dict):
        raise DataError(f"{file} holds no spec", fix="Write it with base.config.to_plain")
    return from_plain(Spec, plain, str(file))
