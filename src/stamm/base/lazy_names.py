"""Names of a package that are imported on first use, so that importing the package loads no library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]], *, packages: Sequence[str] = ()
) -> Callable[[str], Any]:
    """The `__getattr__` of `package` that imports a name from its module on first use.

    modules    the names of each module, relative to the package
    packages   sub-packages that are attributes, too

    Define it under `if not TYPE_CHECKING`, so that a type checker reports a name that is not public.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def attribute(name: str) -> Any:
        if name in packages:
            return import_module(f"{package}.{name}")
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        vars(sys.modules[package])[name] = value
        return value

    return attribute
