"""Registry of the catalogue: finds an entry by name; families are loaded on first use.

A model names one activation, so it loads one family; listing the catalogue loads them all.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stamm.activations.spec.shipped import HOMES
from stamm.base.config import nearest
from stamm.base.errors import ConfigError

if TYPE_CHECKING:
    from stamm.activations.spec import Spec

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
    found = _by_name(family(home)) if home in FAMILIES else {}
    if name not in found:  # the index may be older than the catalogue
        found = _by_name(entries())
    if name not in found:
        raise ConfigError(f"{name!r} is not a known activation", fix=nearest(name, found))
    return found[name]


@cache
def entries() -> tuple[Spec, ...]:
    """Every entry, family by family."""
    return tuple(spec for name in FAMILIES for spec in family(name))


@cache
def family(name: str) -> tuple[Spec, ...]:
    """The entries of one family: a file of this folder."""
    found: tuple[Spec, ...] = import_module(f"stamm.activations.catalog.{name}").ENTRIES
    return found


def parts(name: str) -> tuple[Spec, ...]:
    """Specs from which the entries of a family are made, and which are not entries."""
    found: tuple[Spec, ...] = getattr(
        import_module(f"stamm.activations.catalog.{name}"), "PARTS", ()
    )
    return found


@cache
def _by_name(specs: tuple[Spec, ...]) -> dict[str, Spec]:
    return {known: spec for spec in specs for known in (*spec.aliases, spec.name)}


def __getattr__(name: str) -> Any:
    """`ENTRIES`: every entry, loaded on first use."""
    if name == "ENTRIES":
        return entries()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
