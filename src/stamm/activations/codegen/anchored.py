"""Source text of functions that vanish at the anchor: their coefficients."""

from __future__ import annotations

from collections.abc import Iterable

from stamm.activations.derivation.anchored import Anchored

_PER_LINE = 4


def anchored_constant(kind: type[Anchored]) -> str:
    """The name of the coefficients of such a function in the module of a kernel."""
    return kind.__name__.upper()


def anchored_source(kinds: Iterable[type[Anchored]]) -> str:
    """The module-level coefficients of every function given, each once, by name; "" for none.

    Checked  tests/unit/activations/test_anchored.py
    """
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    return "\n".join(_definition(kind) for kind in ordered)


def _definition(kind: type[Anchored]) -> str:
    low, high = kind.window
    rows = [
        "    " + " ".join(f"{c!r}," for c in kind.coefficients[i : i + _PER_LINE])
        for i in range(0, len(kind.coefficients), _PER_LINE)
    ]
    lines = [
        f"# {kind.difference}",
        f"# on [{low:g}, {high:g}]: coefficients of x, x**2, ...",
        f"{anchored_constant(kind)} = (",
        *rows,
        ")",
    ]
    return "\n".join(lines) + "\n"
