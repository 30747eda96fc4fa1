"""The activation functions that stamm knows, each stated as its gradient.

`ENTRIES`, all of them, and the specs with names of their own are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stamm.activations.catalog.registry import entries, family, get, names

if TYPE_CHECKING:
    from stamm.activations.catalog.core import (
        ATLU,
        CAUCHY,
        GELU,
        LOGISTIC,
        NORMAL,
        RELU,
        RELU2,
        SILU,
        XATLU,
        XGELU,
        XSILU,
    )
    from stamm.activations.catalog.xielu import XIELU, XIPRELU
    from stamm.activations.spec import Spec

    ENTRIES: tuple[Spec, ...]

__all__ = [
    "ATLU",
    "CAUCHY",
    "ENTRIES",
    "GELU",
    "LOGISTIC",
    "NORMAL",
    "RELU",
    "RELU2",
    "SILU",
    "XATLU",
    "XGELU",
    "XIELU",
    "XIPRELU",
    "XSILU",
    "entries",
    "family",
    "get",
    "names",
]


def __getattr__(name: str) -> Any:
    """`ENTRIES`, or a spec by the name it has in its file."""
    if name == "ENTRIES":
        return entries()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "xielu" if name.startswith("XI") else "core"
    return getattr(import_module(f"{__name__}.{home}"), name)
