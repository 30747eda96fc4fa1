"""Shape parameters: their initial values, and the map from the stored number to the effective one.

A parameter is stored raw and used effective: `raw` is any real number, which an optimizer may
move freely; the bijection maps it into the range that the parameter's constraint allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stamm.base.errors import ConfigError

FARTHEST = 32.0  # from 0, or above a bound: how far a parameter is judged


def softplus(raw: float) -> float:
    """log(1 + exp(raw)), accurate for every finite argument."""
    return max(raw, 0.0) + math.log1p(math.exp(-abs(raw)))


def inverse_softplus(value: float) -> float:
    """The raw number whose softplus is `value`: value + log(1 - exp(-value)).

    Edge     softplus(inverse_softplus(v)) is v to within two units in the last place.
    Raises   ConfigError when `value` is not a positive finite number.
    """
    if not 0.0 < value < math.inf:
        raise ConfigError(f"{value!r} is not the softplus of any number", fix="Use a value above 0")
    return value + math.log(-math.expm1(-value))


@dataclass(frozen=True, kw_only=True)
class Softplus:
    """effective = above + softplus(raw).

    above   the open lower bound: a number, or the name of another parameter of the same spec
    """

    above: str = "0"


@dataclass(frozen=True, kw_only=True)
class Exp:
    """effective = above + exp(raw); `above` as in Softplus."""

    above: str = "0"


@dataclass(frozen=True, kw_only=True)
class Absolute:
    """effective = |above| + |raw|; `above` as in Softplus. Its inverse is the positive one.

    Not smooth at raw = 0; here because published functions use it.
    """

    above: str = "0"


@dataclass(frozen=True, kw_only=True)
class Between:
    """effective = low + (high - low) logistic(raw): inside an open range."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Identity:
    """effective = raw: trainable, without a constraint."""


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """A constant of the spec: not trained, not stored."""


Bijection = Softplus | Exp | Absolute | Between | Identity | Fixed


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A shape parameter: its name, its initial effective value and how it is stored."""

    name: str
    initial: float
    bijection: Bijection

    @property
    def trainable(self) -> bool:
        """Whether the parameter is stored and learned."""
        return not isinstance(self.bijection, Fixed)

    @property
    def above(self) -> str | None:
        """The bound of a one-sided constraint, a number or a parameter's name; else None."""
        one_sided = isinstance(self.bijection, (Softplus, Exp, Absolute))
        return self.bijection.above if one_sided else None  # type: ignore[union-attr]

    @property
    def above_name(self) -> str | None:
        """The name of the parameter that bounds this one from below, if one does."""
        return self.above if self.above is not None and as_number(self.above) is None else None

    @property
    def constraint(self) -> str:
        """The formula of the effective value from the stored one."""
        match self.bijection:
            case Fixed():
                return f"{self.name} = {self.initial:g}, fixed"
            case Identity():
                return f"{self.name} = raw"
            case Between(low=low, high=high):
                return f"{self.name} = {low:g} + {high - low:g} logistic(raw)"
            case Absolute(above=above):
                return f"{self.name} = {'' if above == '0' else f'|{above}| + '}|raw|"
            case Softplus(above=above):
                return f"{self.name} = {'' if above == '0' else above + ' + '}softplus(raw)"
            case Exp(above=above):
                return f"{self.name} = {'' if above == '0' else above + ' + '}exp(raw)"

    def effective(self, raw: float, above: float = 0.0) -> float:
        """The effective value of a stored number, given the value of the bound."""
        match self.bijection:
            case Softplus():
                return above + softplus(raw)
            case Exp():
                return above + _exp(raw)
            case Absolute():
                return abs(above) + abs(raw)
            case Between(low=low, high=high):
                return low + (high - low) * logistic(raw)
            case Identity():
                return raw
            case Fixed():
                return self.initial

    def slopes(self, raw: float, above: float = 0.0) -> tuple[float, float]:
        """The derivatives of `effective` in the stored number and in the bound."""
        match self.bijection:
            case Softplus():
                return logistic(raw), 1.0
            case Exp():
                return _exp(raw), 1.0
            case Absolute():
                return _sign(raw), _sign(above)
            case Between(low=low, high=high):
                return (high - low) * logistic(raw) * logistic(-raw), 0.0
            case Identity():
                return 1.0, 0.0
            case Fixed():
                return 0.0, 0.0

    def raw(self, effective: float, above: float = 0.0) -> float:
        """The stored number of an effective value. Inverse of `effective`.

        Raises   ConfigError that names the constraint that the value breaks.
        """
        if not math.isfinite(effective):
            raise ConfigError(f"{self.name} = {effective!r} is not finite")
        wrong = self.broken(effective, above)
        if wrong:
            raise ConfigError(
                f"{self.name} = {effective!r} {wrong} ({self.constraint})",
                fix="Choose a value that meets it, or pass raw values with raw=True",
            )
        match self.bijection:
            case Softplus():
                return inverse_softplus(effective - above)
            case Exp():
                return math.log(effective - above)
            case Absolute():
                return effective - abs(above)
            case Between(low=low, high=high):
                return math.log((effective - low) / (high - effective))
        return effective

    def range_ends(self, above: float = 0.0) -> tuple[float, float] | None:
        """The ends of the range that is judged, given the value of the bound; None for a constant.

        32 on both sides of 0 without a constraint, 1/32 and 32 above a bound, and the inner 31 of
        32 parts of a range with two ends.
        """
        match self.bijection:
            case Softplus() | Exp():
                return above + 1 / FARTHEST, above + FARTHEST
            case Absolute():
                return abs(above), abs(above) + FARTHEST
            case Between(low=low, high=high):
                inset = (high - low) / (2 * FARTHEST)
                return low + inset, high - inset
            case Identity():
                return -FARTHEST, FARTHEST
            case Fixed():
                return None

    def broken(self, effective: float, above: float = 0.0) -> str:
        """The problem with an effective value, as text; empty when it is valid."""
        match self.bijection:
            case Softplus() | Exp() if effective <= above:
                return f"is not above {above!r}"
            case Absolute() if effective < abs(above):
                return f"is below {abs(above)!r}"
            case Between(low=low, high=high) if not low < effective < high:
                return f"is not between {low!r} and {high!r}"
        return ""


class ParameterMaps:
    """The bijections of a spec's trainable parameters together, on plain numbers.

    Checked  tests/unit/activations/test_direct.py
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        held = {p.name: p for p in parameters}
        self.trainable = tuple(p for p in parameters if p.trainable)
        places = {p.name: index for index, p in enumerate(self.trainable)}
        # Per parameter the place of its bound, or the bound itself; bounds come before what they bound.
        self._bounds: list[int | float] = []
        for parameter in self.trainable:
            name = parameter.above_name
            if name is None:
                self._bounds.append(float(parameter.above or 0.0))
            else:
                self._bounds.append(places[name] if name in places else float(held[name].initial))
        self._order: list[int] = []
        while len(self._order) < len(self.trainable):
            self._order += [
                index
                for index, bound in enumerate(self._bounds)
                if index not in self._order and (isinstance(bound, float) or bound in self._order)
            ]

    def __call__(self, raw: Sequence[float]) -> tuple[list[float], list[float]]:
        """Effective values of stored numbers, and row by row their derivatives in all of these."""
        count = len(self.trainable)
        values, slopes = [0.0] * count, [0.0] * (count * count)
        for index in self._order:
            parameter, bound, number = self.trainable[index], self._bounds[index], raw[index]
            above = values[bound] if isinstance(bound, int) else bound
            values[index] = parameter.effective(number, above)
            own, of_bound = parameter.slopes(number, above)
            if isinstance(bound, int):
                for column in range(count):
                    slopes[index * count + column] = of_bound * slopes[bound * count + column]
            slopes[index * count + index] = own
        return values, slopes


def is_finite(number: float) -> bool:
    """Whether a number, which may be an integer of any length, is finite in double precision."""
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def logistic(raw: float) -> float:
    """The logistic distribution function, 1/(1 + exp(-raw)), without overflow on either side."""
    small = math.exp(-abs(raw))
    return 1.0 / (1.0 + small) if raw >= 0 else small / (1.0 + small)


def _sign(number: float) -> float:
    """-1, 0 or 1; NaN of NaN."""
    return math.copysign(1.0, number) if number else number


def _exp(raw: float) -> float:
    """exp(raw), infinity where it overflows."""
    try:
        return math.exp(raw)
    except OverflowError:
        return math.inf


def as_number(text: str) -> float | None:
    """The number that `text` spells, or None when it spells a name."""
    try:
        return float(text)
    except ValueError:
        return None
