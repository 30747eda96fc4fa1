"""Pieces and parameters of the catalogue's entries, in a short notation."""

from __future__ import annotations

from stamm.activations.spec import Piece
from stamm.activations.spec.parameters import Bijection, Fixed, Identity, Parameter, Softplus


def everywhere(formula: str, integral: str = "") -> tuple[Piece, ...]:
    """One piece that holds for all x."""
    return (Piece(where="all x", formula=formula, integral=integral),)


def cut(*rows: tuple[str, str] | tuple[str, str, str]) -> tuple[Piece, ...]:
    """A piece for each row: where it holds, its formula, and its integral where that is known."""
    return tuple(
        Piece(where=where, formula=formula, integral=integral[0] if integral else "")
        for where, formula, *integral in rows
    )


def fixed(**initial: float) -> tuple[Parameter, ...]:
    """Constants by name."""
    return _held(Fixed(), initial)


def free(**initial: float) -> tuple[Parameter, ...]:
    """Trainable parameters without a constraint, with their initial values."""
    return _held(Identity(), initial)


def positive(**initial: float) -> tuple[Parameter, ...]:
    """Trainable parameters above 0, with their initial values."""
    return _held(Softplus(), initial)


def _held(bijection: Bijection, initial: dict[str, float]) -> tuple[Parameter, ...]:
    return tuple(Parameter(name=n, initial=v, bijection=bijection) for n, v in initial.items())
