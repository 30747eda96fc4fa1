"""Findings of a comparison with a known activation, and their sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

Kind = Literal["same spec", "same function", "affine map of", "within epsilon of"]
KINDS: tuple[Kind, ...] = ("same spec", "same function", "affine map of", "within epsilon of")
_UNITS = (
    ("", 1.0),
    ("sqrt(2)", math.sqrt(2)),
    ("pi", math.pi),
    ("sqrt(pi)", math.sqrt(math.pi)),
    ("sqrt(2*pi)", math.sqrt(2 * math.pi)),
    ("log(2)", math.log(2)),
)
_DENOMINATOR = 1000


@dataclass(frozen=True, kw_only=True)
class Affine:
    """f(x) = output_scale * g(input_scale * x + input_shift) + linear * x + constant."""

    input_scale: float = 1.0
    input_shift: float = 0.0
    output_scale: float = 1.0
    linear: float = 0.0
    constant: float = 0.0

    @property
    def is_identity(self) -> bool:
        """Whether it is the identity map."""
        return self == Affine()

    def formula(self, name: str) -> str:
        """The map written out, such as 1/2*silu(2*x) - x."""
        inner = _term(self.input_scale, "x") + _added(self.input_shift, "")
        text = _term(self.output_scale, f"{name}({inner})")
        return text + _added(self.linear, "x") + _added(self.constant, "")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One known activation that a spec is equal to, or near.

    name         the known entry
    kind         how strong the finding is; all but the last are proved to 30 digits
    map          the affine map from the known function to the new one
    parameters   the known entry's parameter values
    distance     relative L2 distance under N(0, 1) of the parts that are not a straight line; 0
                 when equal
    always       whether it was found at every set of parameter values tried, not at the initial
                 ones alone
    freed        parameters that the known entry keeps fixed, but that move with the trained ones of
                 the new spec
    """

    name: str
    kind: Kind
    map: Affine = field(default_factory=Affine)
    parameters: Mapping[str, float] = field(default_factory=dict)
    distance: float = 0.0
    always: bool = True
    freed: tuple[str, ...] = ()

    def sentence(self, subject: str = "f") -> str:
        """The finding in one sentence, with readable numbers."""
        if self.kind == "same spec":
            return f"{subject} is the spec of {self.name}: the content hashes are equal."
        given = ", ".join(f"{name} = {readable(v)}" for name, v in self.parameters.items())
        with_values = f", with {given}" if given else ""
        when = "" if self.always else " Seen at the initial parameter values only."
        if self.freed:
            when += f" Fixed in {self.name}, trained here: {', '.join(self.freed)}."
        written = f"{subject}(x) = {self.map.formula(self.name)}"
        if self.kind == "same function":
            return f"{subject} is the function {self.name}{with_values}.{when}"
        if self.kind == "affine map of":
            return f"{subject} is an affine map of {self.name}: {written}{with_values}.{when}"
        near = written.replace(" = ", " ~ ", 1)
        return (
            f"{subject} is within {self.distance:.3g} (relative L2 distance under N(0, 1), straight"
            f" lines aside) of {self.name}: {near}{with_values}."
        )


def readable(value: float) -> str:
    """A number as a small fraction, or one times a known constant, or to six digits."""
    if value == 0:
        return "0"
    for name, unit in _UNITS:
        for inverse in (False, True) if name else (False,):
            share = value * unit if inverse else value / unit
            near = Fraction(share).limit_denominator(_DENOMINATOR if not name else 12)
            if near and abs(near) < 1e6 and abs(float(near) / share - 1) < 1e-13:
                return _spelled(near, name, inverse)
    return f"{value:.6g}"


def _spelled(near: Fraction, name: str, inverse: bool) -> str:
    over = [str(near.denominator)] if near.denominator != 1 else []
    if inverse:
        over.append(name)
    unit = "" if inverse else name
    sign = "-" if near < 0 else ""
    size = abs(near.numerator)
    top = unit if size == 1 and unit else f"{size}*{unit}" if unit else str(size)
    if not over:
        return sign + top
    return f"{sign}{top}/{over[0]}" if len(over) == 1 else f"{sign}{top}/({'*'.join(over)})"


def _term(factor: float, of: str) -> str:
    """factor * of, without a factor of 1."""
    if factor in (1.0, -1.0):
        return of if factor > 0 else f"-{of}"
    return f"{readable(factor)}*{of}"


def _added(factor: float, of: str) -> str:
    """ " + factor*of", or nothing for 0."""
    if factor == 0:
        return ""
    size = readable(abs(factor)) if not of else _term(abs(factor), of)
    return f" {'+' if factor > 0 else '-'} {size}"
