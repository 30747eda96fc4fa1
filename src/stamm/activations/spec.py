"""A Spec: the one place where an activation function is stated, as the gradient it shall have.

A Spec is plain data (frozen, torch-free, SymPy-free) and is checked when it is made: pieces that
leave a gap or overlap, a pole, an unknown name, an initial value outside its constraint, and a
gradient that jumps although it was declared continuous are all refused with the place and value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

from stamm.activations.expressions import Interval, parse, parse_interval
from stamm.activations.generated.index import NAMES, PARTS
from stamm.activations.parameters import Identity, Parameter
from stamm.activations.spec_checks import problems_of
from stamm.activations.spec_texts import text_problems
from stamm.base.config import nearest, to_plain
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_value

# Not part of what a Spec computes, hence not part of its identity.
_DESCRIPTIVE = ("name", "title", "source", "aliases", "notes", "peers")
_MOVED = 0.37  # how far the second set of sample values is moved, in raw units
_FAR = 4.0  # and how far each parameter alone is moved to see what training may reach


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A formula and where it holds: `where` is "x > 0", "a < x <= 1" or "all x".

    integral   an antiderivative of the formula, where one is known: it is proved by
               differentiation, fixes no constant and is no part of the identity
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
    """What multiplies a gate when it is not the up input itself: h(up), stated as its gradient.

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


@dataclass(frozen=True, kw_only=True)
class Spec:
    """An activation function, stated as its gradient.

    f'(x) = the formula of the piece that holds x;  f(anchor[0]) = anchor[1];  f is continuous
    except where `jumps` says otherwise.

    name         the paper's spelling, lower case
    pieces       the gradient, piece by piece, covering every real x exactly once
    parameters   the shape parameters, in the order kernels take them
    anchor       (x0, f(x0)), both formulas in the parameters
    continuity   "continuous": the gradient has no jump; "jump": it may jump at a knot;
                 "singular": it may be infinite at a knot, where its integral is still finite
    jumps        where the function itself jumps
    surrogate    what the backward pass uses instead of the gradient, declared as no gradient
    arity        Plain, or Gated (y = f(gate) * up)
    compat       another library's order of evaluation, where bit equality with it matters
    peers        other implementations to compare with, as "module:function"
    Raises       ConfigError with every problem found, each with the piece and a value.
    Checked      tests/unit/activations/test_spec.py
    """

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

    def __post_init__(self) -> None:
        problems = list(text_problems(self))
        # What ships was checked when its kernel was generated, and is known by its hash.
        known = (NAMES.get(self.content_hash), PARTS.get(self.content_hash))
        if not problems and self.name not in known:
            problems = problems_of(self)
        if problems:
            raise ConfigError("; ".join(problems), where=self.where)

    @property
    def where(self) -> str:
        """How errors point at this spec."""
        return f"spec {self.name!r}"

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of what the spec computes, hexadecimal: its identity. Names are not in it.

        Fields that are left at their defaults are not hashed: a field that is added to the
        language later changes no identity.
        """
        return sha256_value(_identity(self, skip=_DESCRIPTIVE))

    @cached_property
    def intervals(self) -> tuple[Interval, ...]:
        """Where each piece holds, in the order of `pieces`."""
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
        """Parameter values to try things with: the initial ones and one generic set.

        A property such as continuity must hold for all values, not for the initial ones alone.
        """
        start = self.initial_values()
        raw = self.raw_values({p.name: p.initial for p in self.trainable})
        moved = self.effective_values(
            {name: value + _MOVED * (i + 1) for i, (name, value) in enumerate(raw.items())}
        )
        return [start] if moved == start else [start, moved]

    def stress_values(self) -> list[dict[str, float]]:
        """Parameter values that training may reach: each raw value moved far to either side.

        What an optimizer may do must not open a gap, a pole or a jump.
        """
        raw = self.raw_values({p.name: p.initial for p in self.trainable})
        moves = [(name, value + by) for name, value in raw.items() for by in (-_FAR, _FAR)]
        moves += [(p.name, 0.0) for p in self.trainable if isinstance(p.bijection, Identity)]
        return [self.effective_values({**raw, name: value}) for name, value in moves]

    def effective_values(self, raw: Mapping[str, float]) -> dict[str, float]:
        """Effective value of every parameter from the raw (stored) values of the trainable ones.

        Raises   ConfigError when a trainable parameter is missing or an unknown one is given.
        """
        self._check_names(raw)
        values: dict[str, float] = {}
        for parameter in self._bounds_first():
            bound = self._bound(parameter, values)
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
                bound = self._bound(parameter, values)
                raw[parameter.name] = parameter.raw(values[parameter.name], bound)
            except ConfigError as error:
                raise ConfigError(error.what, where=self.where, fix=error.fix) from None
        return raw

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

    def _bound(self, parameter: Parameter, values: Mapping[str, float]) -> float:
        if parameter.above is None:
            return 0.0
        name = parameter.above_name
        return float(parameter.above) if name is None else values[name]


def _identity(value: Any, skip: tuple[str, ...] = ()) -> Any:
    """The plain form of a dataclass without what is default, descriptive or only a hint."""
    if isinstance(value, tuple):
        return [_identity(item) for item in value]
    if not hasattr(value, "__dataclass_fields__"):
        return to_plain(value)
    hints = ("integral",) if isinstance(value, Piece) else ()
    kept: dict[str, Any] = {"kind": type(value).__name__}
    for item in fields(value):
        inner = getattr(value, item.name)
        if item.name not in (*skip, *hints) and inner != item.default:
            kept[item.name] = _identity(inner)
    return kept
