"""Recipes: functions that return a typed configuration for `stamm run` and `stamm.run`.

Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stamm.recipes.arm import Arm
    from stamm.recipes.catalog import RECIPES, Config, Recipe, get
    from stamm.recipes.compare import Comparison, Tuning
    from stamm.recipes.corpus import CorpusRecipe
    from stamm.recipes.resolve import build
    from stamm.recipes.study import Study

__all__ = [
    "RECIPES",
    "Arm",
    "Comparison",
    "Config",
    "CorpusRecipe",
    "Recipe",
    "Study",
    "Tuning",
    "build",
    "get",
]

_MODULES = {
    "arm": ("Arm",),
    "catalog": ("RECIPES", "Config", "Recipe", "get"),
    "compare": ("Comparison", "Tuning"),
    "corpus": ("CorpusRecipe",),
    "resolve": ("build",),
    "study": ("Study",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a type checker reports a name that is not public

    def __getattr__(name: str) -> Any:
        """The public name, imported from its module on first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
