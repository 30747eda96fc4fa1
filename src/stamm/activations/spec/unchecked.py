"""The fields of a Spec and the values of its parameters, before anything is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from stamm.activations.spec.expressions import PieceInterval, parse, parse_interval
from stamm.activations.spec.parameters import Absolute, Identity, Parameter
from stamm.base.config import nearest
from stamm.base.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A formula and where it holds: `where` is "x > 0", "a < x <= 1" or "all x".

    integral   an antiderivative of the formula, where one is known: it is proved by
               differentiation, fixes no constant and is not part of the identity
    """

    where: str
    formula: str
    integral: str = ""


@dataclass(frozen=True, kw_only=True)
class Jump:
    """The function (not its gradient) jumps: f(at+) - f(at-) = by. `at` is a knot."""

    at: str
    by: str


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A named number."""

    name: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Compat:
    """Another library's order of evaluation, kept operation by operation.

    pieces      the function (not its gradient) as that library writes it; the first piece whose
                condition holds is taken, the last one is the remainder
    constants   numbers that only this order of evaluation needs
    source      where the order was read
    """

    name: str
    pieces: tuple[Piece, ...]
    constants: tuple[Constant, ...] = ()
    source: str


@dataclass(frozen=True, kw_only=True)
class Plain:
    """One input: y = f(x)."""


@dataclass(frozen=True, kw_only=True)
class Factor:
    """The factor h(up) of a gate, where it is not the up input itself, stated as its gradient.

    h'(x) = the formula of the piece that holds x;  h(anchor[0]) = anchor[1]. Formulas may use the
    spec's fixed parameters; trainable ones belong to the gate.
    """

    pieces: tuple[Piece, ...]
    anchor: tuple[str, str] = ("0", "0")


@dataclass(frozen=True, kw_only=True)
class Gated:
    """Two inputs: y = f(gate) * up, or f(gate) * h(up).

    order    1 when f is a bounded gate, 2 when f is itself a gate times its input
    layout   how a fused projection holds the two: which half comes first, or interleaved
    up       h, or None for the up input itself
    """

    order: Literal[1, 2]
    layout: Literal["gate_first", "up_first", "interleaved"] = "gate_first"
    up: Factor | None = None


_MOVED = 0.37  # offset of the second set of sample values, in raw units
_FAR = 4.0  # offset of each parameter alone, to test values that training may reach
_OPPOSITE = (-1.0, 0.0, 1.0)  # offsets from the opposite of an unconstrained parameter


@dataclass(frozen=True, kw_only=True)
class UncheckedSpec:
    """The fields of `Spec`, without its checks and its content hash."""

    name: str
    title: str
    pieces: tuple[Piece, ...]
    parameters: tuple[Parameter, ...] = ()
    anchor: tuple[str, str] = ("0", "0")
    continuity: Literal["continuous", "jump", "singular"] = "continuous"
    jumps: tuple[Jump, ...] = ()
    surrogate: tuple[Piece, ...] = ()
    arity: Plain | Gated = field(default_factory=Plain)
    compat: Compat | None = None
    source: str
    aliases: tuple[str, ...] = ()
    notes: str = ""
    peers: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The location of this spec in error messages."""
        return f"spec {self.name!r}"

    @cached_property
    def intervals(self) -> tuple[PieceInterval, ...]:
        """The interval of each piece, in the order of `pieces`."""
        return tuple(parse_interval(piece.where, where=self.where) for piece in self.pieces)

    @cached_property
    def trees(self) -> tuple[Any, ...]:
        """The parsed formula of each piece, in the order of `pieces`."""
        return tuple(parse(p.formula, where=f"{self.where}, {p.where}") for p in self.pieces)

    @property
    def trainable(self) -> tuple[Parameter, ...]:
        """The parameters that are stored and learned, in order."""
        return tuple(p for p in self.parameters if p.trainable)

    def initial_values(self) -> dict[str, float]:
        """Effective initial value of every parameter, fixed ones included."""
        return {p.name: p.initial for p in self.parameters}

    def sample_values(self) -> list[dict[str, float]]:
        """Parameter values for numerical checks: the initial ones and one generic set.

        A property such as continuity must hold for all values, not for the initial ones alone.
        """
        start = self.initial_values()
        raw = self.raw_values({p.name: p.initial for p in self.trainable})
        moved = self.effective_values(
            {name: value + _MOVED * (i + 1) for i, (name, value) in enumerate(raw.items())}
        )
        return [start] if moved == start or not _all_finite(moved) else [start, moved]

    def stress_values(self) -> list[dict[str, float]]:
        """Parameter values that training may reach: each raw value moved far to either side.

        No value that an optimizer can reach may open a gap, a pole or a jump. A parameter that may
        be 0 is moved there as well, one with a magnitude to its bound, and an unconstrained one to
        the opposite sign. Values that overflow are left out.
        """
        start = self.initial_values()
        raw = self.raw_values({p.name: p.initial for p in self.trainable})
        moves = [(name, value + by) for name, value in raw.items() for by in (-_FAR, _FAR)]
        zeros = {}
        for parameter in self.trainable:
            name, bound = parameter.name, self.bound_of(parameter, start)
            if not parameter.broken(0.0, bound):
                zeros[name] = parameter.raw(0.0, bound)
            elif isinstance(parameter.bijection, Absolute):
                moves.append((name, 0.0))
            if isinstance(parameter.bijection, Identity):
                moves += [(name, by - raw[name]) for by in _OPPOSITE]
        settings = [
            self.effective_values({**raw, name: value}) for name, value in dict.fromkeys(moves)
        ]
        # The effective value of that raw one may be a rounding error instead of 0.
        settings += [
            {**self.effective_values({**raw, name: value}), name: 0.0}
            for name, value in zeros.items()
        ]
        return [values for values in settings if _all_finite(values)]

    def ends_of(self, name: str) -> list[dict[str, float]]:
        """The initial values with one parameter at either end of the range that is judged."""
        start = self.initial_values()
        parameter = next(p for p in self.parameters if p.name == name)
        ends = parameter.range_ends(self.bound_of(parameter, start)) or ()
        return [{**start, name: end} for end in ends]

    def effective_values(self, raw: Mapping[str, float]) -> dict[str, float]:
        """Effective value of every parameter from the raw (stored) values of the trainable ones.

        Raises   ConfigError when a trainable parameter is missing or an unknown one is given.
        """
        self._check_names(raw)
        values: dict[str, float] = {}
        for parameter in self._bounds_first():
            bound = self.bound_of(parameter, values)
            stored = raw[parameter.name] if parameter.trainable else parameter.initial
            values[parameter.name] = parameter.effective(stored, bound)
        return {p.name: values[p.name] for p in self.parameters}

    def raw_values(self, effective: Mapping[str, float]) -> dict[str, float]:
        """Raw (stored) value of every trainable parameter. Inverse of `effective_values`.

        Raises   ConfigError when a value breaks its constraint, or is not finite.
        """
        self._check_names(effective)
        values = {**self.initial_values(), **effective}
        raw = {}
        for parameter in self.trainable:
            try:
                bound = self.bound_of(parameter, values)
                raw[parameter.name] = parameter.raw(values[parameter.name], bound)
            except ConfigError as error:
                raise ConfigError(error.what, where=self.where, fix=error.fix) from None
        return raw

    def check_raw_values(self, raw: Mapping[str, float]) -> None:
        """Check that raw (stored) values have finite effective values.

        Raises   ConfigError with the parameter and the value; also as `effective_values`.
        """
        for name, value in self.effective_values(raw).items():
            if not math.isfinite(value):
                constraint = next(p.constraint for p in self.parameters if p.name == name)
                raise ConfigError(
                    f"the effective value of {name} is {value!r} at raw {raw[name]!r} ({constraint})",
                    where=self.where,
                    fix="Use a smaller raw value, or pass effective values with raw=False",
                )

    def _check_names(self, values: Mapping[str, float]) -> None:
        names = [p.name for p in self.trainable]
        for name in values:
            if name not in names:
                raise ConfigError(
                    f"{name!r} is not a trainable parameter of {self.name}",
                    fix=nearest(name, names) if names else "It has none",
                )
        for name in names:
            if name not in values:
                raise ConfigError(f"{self.name} needs a value for {name!r}", where=self.where)

    def _bounds_first(self) -> list[Parameter]:
        return sorted(self.parameters, key=lambda p: p.above_name is not None)

    def bound_of(self, parameter: Parameter, values: Mapping[str, float]) -> float:
        """The value that bounds a parameter from below; 0 where nothing does."""
        if parameter.above is None:
            return 0.0
        name = parameter.above_name
        return float(parameter.above) if name is None else values[name]


def _all_finite(values: Mapping[str, float]) -> bool:
    return all(math.isfinite(value) for value in values.values())
