"""From a word to a Spec: a name of the catalogue, a Python file, or a stored spec.

A Python file is the user's own and is executed; a JSON file is only read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stamm.activations import catalog
from stamm.activations.spec import Spec
from stamm.base.config import from_plain, nearest
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.base.user_code import load_python

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


def refuse_taken(spec: Spec, taken: Sequence[Spec]) -> None:
    """Raise when another activation that computes something else has the spec's name.

    Raises   ConfigError that names the one that has it.
    """
    for other in taken:
        if spec.name in (other.name, *other.aliases) and other.content_hash != spec.content_hash:
            raise ConfigError(
                f"the name {spec.name!r} is taken by {other.title!r}, which computes something"
                f" else ({other.content_hash[:12]}, not {spec.content_hash[:12]})",
                where=spec.where,
                fix="Choose another name",
            )
