"""Load a user's own Python code: "mine.py:Name" or "package.module:Name".

Every extension point (activation, corpus filter, evaluation task, export target, reward, optimizer,
objective) accepts such a reference where it accepts the name of a built-in. The code is executed;
what it raises is reported in one line with the line of the file where it was raised.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from stamm.base.config import nearest
from stamm.base.errors import ConfigError, StammError

T = TypeVar("T")
NAMES_CODE = {"names_code": True}
"""Metadata of a field of a configuration that may name code: "mine.py:Name", or a task's YAML, which may call functions."""
_NAME = re.compile(r"[a-z0-9_]{1,40}")


def is_reference(text: str) -> bool:
    """Whether `text` has the form of a reference to user code, "mine.py:Name" or "a.b:Name"."""
    path, _, name = text.rpartition(":")
    return (bool(path) and name.isidentifier()) or text.endswith(".py")


def check_stored_code(config: object, where: str, named: Iterable[str], fix: str) -> None:
    """Check that the user has named the code that a stored configuration would execute.

    Called before anything of it is used: what a run folder contains may come from anyone.

    where   the file of the configuration
    named   words of this command or recipe that may name it: "mine.py:Name", "tasks=mine.py:Name,blimp"
    fix     how to name it

    Raises   ConfigError with the first reference that is not named.
    """
    known = {part for word in named for part in re.split(r"""[=,\[\]\s"']+""", word)}
    for reference in _named_code(config):
        if reference not in known:
            raise ConfigError(
                f"the stored configuration names code, {reference!r}, which is executed only when you "
                "name it, too",
                where=where,
                fix=f"Read that code, then {fix}",
            )


def _named_code(config: object) -> Iterator[str]:
    """References to code in the fields of a configuration that may have them."""
    if isinstance(config, Mapping):
        config = tuple(config.values())
    if isinstance(config, tuple | list):
        for value in config:
            yield from _named_code(value)
    elif dataclasses.is_dataclass(config):
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            if "names_code" in field.metadata:
                texts = (value,) if isinstance(value, str) else value
                yield from (text for text in texts if is_reference(text) or _is_yaml(text))
            else:
                yield from _named_code(value)


def _is_yaml(text: str) -> bool:
    return text.lower().endswith((".yaml", ".yml"))


def reference_files(names: Iterable[str]) -> dict[str, Path]:
    """The Python files of the references among `names`, by file name: "mine.py:Name" -> mine.py."""
    paths = (name if name.endswith(".py") else name.rpartition(":")[0] for name in names)
    return {path: Path(path) for path in paths if path.endswith(".py")}


def code_files(references: Iterable[str]) -> dict[str, Path]:
    """The source file of each reference, by file or module name; its hash identifies the code.

    Edge     of a module of a package it is that module's file only; a module that cannot be found
             has none.
    """
    names = tuple(references)
    files = reference_files(names)
    for name in names:
        module = name.rpartition(":")[0]
        if module and not module.endswith(".py"):
            origin = _module_file(module)
            files |= {} if origin is None else {module: origin}
    return files


def load_reference(reference: str, kind: type[T] | None, what: str) -> T:
    """The object that `reference` names.

    reference   "mine.py:Name", "package.module:Name", or "mine.py" when the file defines exactly
                one object of `kind`
    kind        class or runtime-checkable protocol that the object must be an instance of; a class
                found instead of an instance is called without arguments. None: anything
    what        what the object is to be, for messages: "a corpus filter"
    Raises      ConfigError when the file, the name or the kind does not fit, or the code raises.
    """
    path, _, name = reference.rpartition(":")
    if not path:
        path, name = name, ""
    module = load_python(Path(path)) if path.endswith(".py") else _imported(path)
    source = Path(module.__file__ or path)
    own = {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and _fits(value, kind, module)
    }
    if not name:
        if len({id(value) for value in own.values()}) != 1:
            named = ", ".join(f"{path}:{key}" for key in own)
            raise ConfigError(
                f"{path} defines {len(own) or 'no'} objects that are {what}",
                fix=f"Name one: {named}" if own else f"Define {what} in it",
            )
        name = next(iter(own))
    if name not in vars(module):
        raise ConfigError(
            f"{path} has no {name!r}",
            fix=nearest(name, own) if own else f"Define {what} called {name} in it",
        )
    if kind is not None and name not in own:
        raise _unfit(f"{path}:{name}", kind, what)
    loaded = vars(module)[name]
    if isinstance(loaded, type) and kind is not None:
        check_call(loaded, source, (), "no arguments")
        loaded = guarded(source, loaded)
        if not isinstance(loaded, kind):
            raise _unfit(f"{path}:{name}", kind, what)
    if getattr(kind, "_is_protocol", False):
        _check_methods(loaded, kind, source)
    return loaded  # type: ignore[no-any-return]


def options_checks(options: Sequence[str]) -> tuple[tuple[str, bool, str], ...]:
    """For `validate`: whether the field `options` holds "name=value", each name once."""
    named = [option.partition("=") for option in options]
    plain = all(name.isidentifier() and equals for name, equals, _ in named)
    return (
        ("options", plain, 'must be of the form "name=value"'),
        ("options", len({name for name, *_ in named}) == len(named), "has a name twice"),
    )


def keyword_options(options: Sequence[str]) -> dict[str, Any]:
    """The options "name=value" as keyword arguments: Python literals, or strings."""
    return {name: _literal(value) for name, _, value in (o.partition("=") for o in options)}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def load_named(
    reference: str,
    kind: type[T] | None,
    what: str,
    *,
    names: str,
    where: str = "",
    reserved: Collection[str] = (),
) -> T:
    """As `load_reference`, for an object whose attribute `name` names files or records.

    names      what it names, for messages: "its result files"
    where      key of the configuration, for messages
    reserved   names of the built-in ones
    Raises     ConfigError as `load_reference`, and for a name that is not of at most 40 lower-case
               letters, digits and _, or is reserved.
    """
    loaded = load_reference(reference, kind, what)
    name = getattr(loaded, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in reserved:
        noun = what.rpartition(" ")[2]
        raise ConfigError(
            f"{reference} has name = {name!r}, which cannot name {names}",
            where=where,
            fix=f"Use at most 40 lower-case letters, digits and _, and not the name of a built-in {noun}",
        )
    return loaded


def source_file(reference: str, loaded: object) -> Path:
    """The Python file that defines `loaded`, the object that `reference` names."""
    path = reference.rpartition(":")[0] or reference
    if path.endswith(".py"):
        return Path(path)
    try:
        return Path(inspect.getfile(loaded))  # type: ignore[arg-type]
    except TypeError:  # neither a class nor a function
        return Path(_imported(path).__file__ or path)


def load_python(file: Path) -> ModuleType:
    """The user's Python file, executed once per content.

    Raises   ConfigError that reports whatever the file raises in one line, with the line number.
    """
    if not file.is_file():
        raise ConfigError(f"{file} does not exist")
    content = hashlib.sha256(str(file.resolve()).encode() + file.read_bytes()).hexdigest()[:16]
    name = f"stamm_user_{file.stem}_{content}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        guarded(file, functools.partial(spec.loader.exec_module, module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def check_call(
    called: Callable[..., Any], file: Path, arguments: Sequence[Any], described: str
) -> None:
    """Check that a class or function of the user's file takes so many positional arguments.

    described   the arguments, for messages: "no arguments"

    Raises   ConfigError naming both
    """
    try:
        inspect.signature(called).bind(*arguments)
    except (TypeError, ValueError) as error:
        if isinstance(error, ValueError) and not inspect.ismethod(called):
            return  # a class of C has no signature
        name = getattr(called, "__qualname__", str(called))
        raise ConfigError(
            f"{name} is called with {described}: {error}",
            where=str(file),
            fix="Give the other parameters defaults, or leave __init__ out"
            if isinstance(called, type)
            else "Correct its parameters",
        ) from None


def _check_methods(instance: Any, protocol: Any, file: Path) -> None:
    """Check that the methods of a user's object take the arguments that the protocol's are called with."""
    for key, declared in vars(protocol).items():
        if key in _members(protocol) and inspect.isfunction(declared):
            given = list(inspect.signature(declared).parameters)[1:]
            check_call(getattr(instance, key), file, given, ", ".join(given) or "no arguments")


def guarded(file: Path, work: Callable[[], Any], passed: tuple[type[Exception], ...] = ()) -> Any:
    """The result of `work`, code of the user's file; what it raises becomes a one-line ConfigError.

    passed   exceptions that are raised as they are
    """
    try:
        return work()
    except passed:
        raise
    except (Exception, SystemExit) as error:  # a script may end its process when it is read
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if Path(f.filename).resolve() == file.resolve()]
        where = f"{file}, line {lines[-1]}" if lines else str(file)
        if isinstance(error, StammError):
            raise ConfigError(error.what, where=error.where or where, fix=error.fix) from error
        raise ConfigError(
            f"{type(error).__name__}: {error}", where=where, fix="Correct the file"
        ) from error


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{module} cannot be imported: {error}",
            fix="Write a file, mine.py:Name, or install the package",
        ) from error
    except StammError:
        raise
    except (Exception, SystemExit) as error:  # code of the user's, or of a package
        raise ConfigError(
            f"{module} cannot be imported: {type(error).__name__}: {error}",
            fix="Correct the module",
        ) from error


def _fits(value: Any, kind: type | None, module: ModuleType) -> bool:
    if kind is None:
        own = getattr(value, "__module__", module.__name__) == module.__name__
        return own and not isinstance(value, ModuleType)
    if isinstance(value, type):
        return value.__module__ == module.__name__ and _provides(value, kind)
    return isinstance(value, kind)


def _provides(cls: type, kind: type) -> bool:
    """Whether instances of `cls` can be of `kind`; the methods of a protocol are looked up by name."""
    if not getattr(kind, "_is_protocol", False):
        return issubclass(cls, kind)
    # Not hasattr: every class has a __call__, that of its metaclass.
    provided = {
        key for base in cls.__mro__ for key in (*vars(base), *vars(base).get("__annotations__", {}))
    }
    return provided >= _members(kind)


def _members(protocol: type) -> set[str]:
    """The attributes and methods that a protocol declares."""
    names = {*vars(protocol).get("__annotations__", {}), *vars(protocol)}
    return {key for key in names if not key.startswith("_") or key == "__call__"}


def _unfit(name: str, kind: type, what: str) -> ConfigError:
    members = ", ".join(sorted(_members(kind))) if getattr(kind, "_is_protocol", False) else ""
    needs = f": {members}" if members else ""
    return ConfigError(
        f"{name} is not {what}", fix=f"It must provide what {kind.__name__} declares{needs}"
    )


def _module_file(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    path = Path(spec.origin) if spec is not None and spec.origin else None
    return path if path is not None and path.is_file() else None
