"""Recipes: functions that return a typed configuration for `stamm run` and `stamm.run`.

Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stamm.base.lazy_names import lazy_names

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

if not TYPE_CHECKING:  # a type checker reports a name that is not public
    __getattr__ = lazy_names(
        __name__,
        {
            "arm": ("Arm",),
            "catalog": ("RECIPES", "Config", "Recipe", "get"),
            "compare": ("Comparison", "Tuning"),
            "corpus": ("CorpusRecipe",),
            "resolve": ("build",),
            "study": ("Study",),
        },
    )
