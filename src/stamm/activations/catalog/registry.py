"""Registry of the catalogue: finds an entry by name, loads a Spec from a file; families are loaded on first use.

A model names one activation, so it loads one family; listing the catalogue loads them all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stamm.activations.spec import Spec
from stamm.activations.spec.shipped import HOMES
from stamm.base.config import from_plain, is_reading_stored, nearest
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.base.user_code import is_reference, load_reference

if TYPE_CHECKING:
    ENTRIES: tuple[Spec, ...]

# Files of this folder, in the order of the catalogue.
FAMILIES = (
    "xielu",
    "core",
    "self_gated",
    "integrated",
    "gated_units",
    "rectifiers",
    "exponential",
    "smooth",
    "bounded",
    "rational",
)


def names() -> tuple[str, ...]:
    """The names of all entries, in the order of the catalogue; aliases are not among them."""
    return tuple(spec.name for spec in entries())


def get(name: str) -> Spec:
    """The entry called `name`, or the one of which `name` is an alias.

    Raises   ConfigError that suggests the nearest name.
    """
    home = HOMES.get(name)
    specs = _by_name(family(home)) if home in FAMILIES else {}
    if name not in specs:  # the index may be older than the catalogue
        specs = _by_name(entries())
    if name not in specs:
        raise ConfigError(f"{name!r} is not a known activation", fix=nearest(name, specs))
    return specs[name]


@cache
def entries() -> tuple[Spec, ...]:
    """Every entry, family by family."""
    return tuple(spec for name in FAMILIES for spec in family(name))


@cache
def family(name: str) -> tuple[Spec, ...]:
    """The entries of one family: a file of this folder."""
    specs: tuple[Spec, ...] = import_module(f"stamm.activations.catalog.{name}").ENTRIES
    return specs


def parts(name: str) -> tuple[Spec, ...]:
    """Specs from which the entries of a family are made, and which are not entries."""
    specs: tuple[Spec, ...] = getattr(
        import_module(f"stamm.activations.catalog.{name}"), "PARTS", ()
    )
    return specs


@cache
def _by_name(specs: tuple[Spec, ...]) -> dict[str, Spec]:
    return {known: spec for spec in specs for known in (*spec.aliases, spec.name)}


def __getattr__(name: str) -> Any:
    """`ENTRIES`: every entry, loaded on first use."""
    if name == "ENTRIES":
        return entries()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


STORED = "spec.json"


def load_spec(text: str) -> Spec:
    """The spec that `text` names.

    xielu             an entry of the catalogue, by name or alias
    file.py           the only Spec in the user's own file, which is executed
    file.py:NAME      the Spec called NAME there; package.module:NAME likewise
    spec.json         the output of `base.config.to_plain` for a Spec
    folder            a folder that holds spec.json

    Raises   ConfigError when there is none, or when the spec is invalid; DataError for a file that
             is not JSON.
    Checked  tests/unit/activations/test_spec_files.py
    """
    if is_reference(text):
        return load_reference(text, Spec, "a Spec of an activation")
    if text.endswith(".json"):
        return _from_json(Path(text))
    if (Path(text) / STORED).is_file():
        return _from_json(Path(text) / STORED)
    if Path(text).is_dir():
        raise ConfigError(f"{text} holds no {STORED}", fix="Name a folder that has one")
    if "/" in text:
        raise ConfigError(f"{text} does not exist", fix="`stamm derive` writes derived/NAME")
    return get(text)


def names_spec(text: str) -> bool:
    """Whether a word of the command line names a spec as `load_spec` takes it, rather than stating a formula."""
    path = text.partition(":")[0]
    # Path.is_file raises for a name that is longer than the file system allows, as a formula may be.
    stored = os.path.isfile(os.path.join(text, STORED))  # noqa: PTH113, PTH118
    return text in HOMES or path.endswith(".py") or text.endswith(".json") or stored


def named_activation(value: str | Spec) -> str | Spec:
    """The value that a configuration stores for an activation: the name of an entry, or a Spec.

    value    an entry's name or alias; a reference as `load_spec` takes it, which is replaced by the
             Spec that it names, so that a stored configuration needs no other file; or a Spec
    Raises   ConfigError when there is none, or when its name belongs to another activation.
    Checked  tests/unit/activations/test_spec_files.py
    """
    if isinstance(value, str):
        if value in HOMES:
            return value
        if not is_path(value) and not (Path(value) / STORED).is_file():
            return _entry_name(value)
        if is_reading_stored():
            raise ConfigError(
                f"activation = {value!r} refers to a file, which a stored configuration never does",
                fix="A trained model holds the spec itself: restore the file",
            )
        value = load_spec(value)
    if value.name in HOMES:
        check_name_free(value, [get(value.name)])
        return value.name
    return value


def spec_of(activation: str | Spec) -> Spec:
    """The Spec of what `named_activation` returned."""
    return get(activation) if isinstance(activation, str) else activation


def is_path(text: str) -> bool:
    """Whether `text` names a file, a folder or an object in Python code, rather than an entry."""
    return is_reference(text) or "/" in text or text.endswith(".json")


def _entry_name(name: str) -> str:
    try:
        get(name)
    except ConfigError as error:
        derived = Path("derived") / name
        own = f"; your own: {derived}" if (derived / STORED).is_file() else ""
        raise ConfigError(
            error.what, fix=f"{error.fix}{own or '; or your own: mine.py:NAME, derived/NAME'}"
        ) from None
    return name


def _from_json(file: Path) -> Spec:
    plain = read_json(file)
    if not isinstance(plain, dict):
        raise DataError(f"{file} holds no spec", fix="Write it with base.config.to_plain")
    return from_plain(Spec, plain, str(file))


def check_name_free(spec: Spec, taken: Sequence[Spec]) -> None:
    """Check that no other activation with another function has the spec's name.

    Raises   ConfigError that names the activation that has it.
    """
    for other in taken:
        if spec.name in (other.name, *other.aliases) and other.content_hash != spec.content_hash:
            raise ConfigError(
                f"the name {spec.name!r} is taken by {other.title!r}, which computes something"
                f" else ({other.content_hash[:12]}, not {spec.content_hash[:12]})",
                where=spec.where,
                fix="Choose another name",
            )
