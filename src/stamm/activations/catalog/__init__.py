"""The activation functions that stamm knows, each stated as its gradient.

`ENTRIES`, all of them, is put together when it is first used.
"""

from typing import TYPE_CHECKING, Any

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
    XIELU,
    XIPRELU,
    XSILU,
)
from stamm.activations.catalog.registry import entries, family, get, names

if TYPE_CHECKING:
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
    """`ENTRIES`: every entry, loaded on first use."""
    if name == "ENTRIES":
        return entries()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
