"""A Spec: the one place where an activation function is stated, as the gradient it shall have.

A Spec is plain data (frozen, torch-free, SymPy-free) and is checked when it is made: pieces that
leave a gap or overlap, a pole, an unknown name, an initial value outside its constraint, and a
gradient that jumps although it was declared continuous are all refused with the place and value.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from stamm.activations.checks import gradient_problems
from stamm.activations.expressions import (
    CONSTANTS,
    FUNCTIONS,
    VARIABLE,
    Interval,
    parse,
    parse_interval,
    symbols,
)
from stamm.base.config import nearest, to_plain
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_value

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
# Not part of what a Spec computes, hence not part of its identity.
_DESCRIPTIVE = ("name", "title", "source", "aliases", "notes")


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
class Identity:
    """effective = raw: trainable, without a constraint."""


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """A constant of the spec: not trained, not stored."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A shape parameter: its name, its initial effective value and how it is stored."""

    name: str
    initial: float
    bijection: Softplus | Identity | Fixed

    @property
    def trainable(self) -> bool:
        """Whether the parameter is stored and learned."""
        return not isinstance(self.bijection, Fixed)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A formula and where it holds: `where` is "x > 0", "a < x <= 1" or "all x"."""

    where: str
    formula: str


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
class Gated:
    """Two inputs: y = f(gate) * up.

    order    1 when f is a bounded gate, 2 when f is itself a gate times its input
    layout   how a fused projection holds the two: which half comes first, or interleaved
    """

    order: Literal[1, 2]
    layout: Literal["gate_first", "up_first", "interleaved"] = "gate_first"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """An activation function, stated as its gradient.

    f'(x) = the formula of the piece that holds x;  f(anchor[0]) = anchor[1];  f is continuous.

    name         the paper's spelling, lower case
    pieces       the gradient, piece by piece, covering every real x exactly once
    parameters   the shape parameters, in the order kernels take them
    anchor       (x0, f(x0)), both formulas in the parameters
    continuity   "continuous": the gradient has no jump; "jump": it may jump at a knot
    arity        Plain, or Gated (y = f(gate) * up)
    compat       another library's order of evaluation, where bit equality with it matters
    Raises       ConfigError with every problem found, each with the piece and a value.
    Checked      tests/unit/activations/test_spec.py
    """

    name: str
    title: str
    pieces: tuple[Piece, ...]
    parameters: tuple[Parameter, ...] = ()
    anchor: tuple[str, str] = ("0", "0")
    continuity: Literal["continuous", "jump"] = "continuous"
    arity: Plain | Gated = field(default_factory=Plain)
    compat: Compat | None = None
    source: str
    aliases: tuple[str, ...] = ()
    notes: str = ""

    def __post_init__(self) -> None:
        problems = list(self._name_problems())
        if not problems:
            problems = list(self._parameter_problems())
        if not problems:
            problems = gradient_problems(
                [(piece.where, self._trees[i]) for i, piece in enumerate(self.pieces)],
                self.intervals,
                self.sample_values(),
                self.anchor,
                self.continuity == "continuous",
            )
        if not problems:
            problems = list(self._compat_problems())
        if problems:
            raise ConfigError("; ".join(problems), where=self.where)

    @property
    def where(self) -> str:
        """How errors point at this spec."""
        return f"spec {self.name!r}"

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of what the spec computes, hexadecimal: its identity. Names are not in it."""
        plain = to_plain(self)
        return sha256_value({k: v for k, v in plain.items() if k not in _DESCRIPTIVE})

    @cached_property
    def intervals(self) -> tuple[Interval, ...]:
        """Where each piece holds, in the order of `pieces`."""
        return tuple(parse_interval(piece.where, where=self.where) for piece in self.pieces)

    @property
    def trainable(self) -> tuple[Parameter, ...]:
        """The parameters that are stored and learned, in order."""
        return tuple(p for p in self.parameters if p.trainable)

    def initial_values(self) -> dict[str, float]:
        """Effective initial value of every parameter, fixed ones included."""
        return {p.name: p.initial for p in self.parameters}

    def sample_values(self) -> list[dict[str, float]]:
        """Parameter values to try things with: the initial ones and one generic set.

        A property such as continuity must hold for all values, not for the initial ones alone.
        """
        start = self.initial_values()
        raw = self.raw_values({p.name: p.initial for p in self.trainable})
        moved = self.effective_values(
            {name: value + 0.37 * (i + 1) for i, (name, value) in enumerate(raw.items())}
        )
        return [start] if moved == start else [start, moved]

    def effective_values(self, raw: Mapping[str, float]) -> dict[str, float]:
        """Effective value of every parameter from the raw (stored) values of the trainable ones.

        effective = above + softplus(raw), or raw itself, or the fixed value.
        Raises   ConfigError when a trainable parameter is missing or an unknown one is given.
        """
        self._check_names(raw)
        values = {
            p.name: raw[p.name] if isinstance(p.bijection, Identity) else p.initial
            for p in self.parameters
            if not isinstance(p.bijection, Softplus)
        }
        for parameter in self._softplus_in_order():
            above = self._bound(parameter, values)
            values[parameter.name] = above + softplus(raw[parameter.name])
        return {p.name: values[p.name] for p in self.parameters}

    def raw_values(self, effective: Mapping[str, float]) -> dict[str, float]:
        """Raw (stored) value of every trainable parameter. Inverse of `effective_values`.

        Raises   ConfigError when a value is not above its bound, or not finite.
        """
        self._check_names(effective)
        values = {**self.initial_values(), **effective}
        raw = {}
        for parameter in self.trainable:
            value = values[parameter.name]
            if not math.isfinite(value):
                raise ConfigError(f"{parameter.name} = {value!r} is not finite", where=self.where)
            if isinstance(parameter.bijection, Identity):
                raw[parameter.name] = value
                continue
            above = self._bound(parameter, values)
            if value <= above:
                raise ConfigError(
                    f"{parameter.name} = {value!r} is not above {above!r}"
                    f" ({_bound_text(parameter)})",
                    where=self.where,
                    fix="Choose a larger value, or pass raw values with raw=True",
                )
            raw[parameter.name] = inverse_softplus(value - above)
        return raw

    @cached_property
    def _trees(self) -> tuple[Any, ...]:
        return tuple(parse(p.formula, where=f"{self.where}, {p.where}") for p in self.pieces)

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

    def _softplus_in_order(self) -> list[Parameter]:
        # Parameters bounded by a number come first: the others may be bounded by one of them.
        bounded = [p for p in self.parameters if isinstance(p.bijection, Softplus)]
        return sorted(bounded, key=lambda p: _number(_above(p)) is None)

    def _bound(self, parameter: Parameter, values: Mapping[str, float]) -> float:
        number = _number(_above(parameter))
        return values[_above(parameter)] if number is None else number

    def _name_problems(self) -> Iterator[str]:
        parameters = [p.name for p in self.parameters]
        for name in (self.name, *self.aliases, *parameters):
            if not _NAME.fullmatch(name) or keyword.iskeyword(name):
                yield f"{name!r} is not a name: use a lower-case letter, then letters, digits or _"
        for name in parameters:
            if name in FUNCTIONS or name in CONSTANTS or name == VARIABLE:
                yield f"the parameter {name!r} has the name of something in the formula language"
            if parameters.count(name) > 1:
                yield f"the parameter {name!r} is given twice"
        if not self.pieces:
            yield "there is no piece"
        for text in self.anchor:
            if symbols(parse(text, where=self.where)) - {*parameters}:
                yield f"the anchor {text!r} names something that is not a parameter"
        for piece, tree, interval in zip(self.pieces, self._trees, self.intervals, strict=True):
            unknown = sorted(symbols(tree) - {VARIABLE, *parameters})
            if unknown:
                yield (
                    f"piece {piece.where!r} uses the unknown name {unknown[0]!r}."
                    f" {nearest(unknown[0], [VARIABLE, *parameters])}"
                )
            for bound in (interval.low, interval.high):
                if bound and symbols(parse(bound, where=self.where)) - {*parameters}:
                    yield f"the knot {bound!r} of piece {piece.where!r} names no parameter"

    def _parameter_problems(self) -> Iterator[str]:
        by_name = {p.name: p for p in self.parameters}
        for parameter in self.parameters:
            if not math.isfinite(parameter.initial):
                yield f"{parameter.name} starts at {parameter.initial!r}, which is not finite"
            if not isinstance(parameter.bijection, Softplus):
                continue
            above = _above(parameter)
            if _number(above) is None:
                bound = by_name.get(above)
                if bound is None or bound is parameter:
                    yield f"{parameter.name} shall be above {above!r}, which is no other parameter"
                    continue
                if isinstance(bound.bijection, Softplus) and _number(_above(bound)) is None:
                    yield f"{parameter.name} is above {above!r}, which has such a bound itself"
                    continue
            limit = self._bound(parameter, self.initial_values())
            if parameter.initial <= limit:
                yield (
                    f"{parameter.name} starts at {parameter.initial!r}, not above {limit!r}"
                    f" ({_bound_text(parameter)})"
                )

    def _compat_problems(self) -> Iterator[str]:
        if self.compat is None:
            return
        known = {VARIABLE, *(p.name for p in self.parameters)}
        known |= {constant.name for constant in self.compat.constants}
        for piece in self.compat.pieces:
            parse_interval(piece.where, where=f"{self.where}, compat {self.compat.name!r}")
            tree = parse(piece.formula, where=self.where, extra=("min", "max"))
            unknown = sorted(symbols(tree) - known)
            if unknown:
                yield f"compat {self.compat.name!r} uses the unknown name {unknown[0]!r}"


def _above(parameter: Parameter) -> str:
    return parameter.bijection.above if isinstance(parameter.bijection, Softplus) else ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _bound_text(parameter: Parameter) -> str:
    return f"effective = {_above(parameter)} + softplus(raw)"
