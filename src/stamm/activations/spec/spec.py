"""Spec: the single definition of an activation function, as its gradient.

A Spec is plain data (frozen, without torch or SymPy) and is validated when it is created: pieces
that leave a gap or overlap, a pole, an unknown name, an initial value outside its constraint, and a
gradient that jumps although it was declared continuous raise an error with the place and value.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from stamm.activations.spec.choices import plain_pieces, plain_text
from stamm.activations.spec.expressions import (
    CONSTANTS,
    FUNCTIONS,
    VARIABLE,
    PieceInterval,
    parse,
    parse_interval,
    symbols,
)
from stamm.activations.spec.gradient_checks import gradient_problems, no_value, value_or_nan
from stamm.activations.spec.parameters import Absolute, Between, Exp, Fixed, as_number, is_finite
from stamm.activations.spec.removable import quotients_by_series
from stamm.activations.spec.shipped import NAMES, PARTS
from stamm.activations.spec.unchecked import Gated, Piece, UncheckedSpec
from stamm.base.config import nearest, to_plain
from stamm.base.errors import ConfigError, visible
from stamm.base.files import sha256_value

# Not part of what a Spec computes, hence not part of its identity.
_DESCRIPTIVE = ("name", "title", "source", "aliases", "notes", "peers")


@dataclass(frozen=True, kw_only=True)
class Spec(UncheckedSpec):
    """An activation function, defined by its gradient.

    f'(x) = the formula of the piece that holds x;  f(anchor[0]) = anchor[1];  f is continuous
    except at the places in `jumps`.

    name         the paper's spelling, lower case
    pieces       the gradient, piece by piece, covering every real x exactly once
    parameters   the shape parameters, in the order kernels take them
    anchor       (x0, f(x0)), both formulas in the parameters
    continuity   "continuous": the gradient has no jump; "jump": it may jump at a knot;
                 "singular": it may be infinite at a knot, where its integral is still finite
    jumps        where the function itself jumps
    surrogate    used by the backward pass instead of the gradient, and declared as such
    arity        Plain, or Gated (y = f(gate) * up)
    compat       another library's order of evaluation, where bit equality with it matters
    peers        other implementations to compare with, as "module:function"
    Raises       ConfigError with every problem found, each with the piece and a value.
    Checked      tests/unit/activations/test_spec.py
    """

    def __post_init__(self) -> None:
        self._write_plainly()
        problems = list(text_problems(self))
        # Shipped specs were checked when their kernels were generated; the hash identifies them.
        known = (NAMES.get(self.content_hash), PARTS.get(self.content_hash))
        if not problems and self.name not in known:
            problems = problems_of(self)
        if problems:
            raise ConfigError("; ".join(problems), where=self.where)

    def _write_plainly(self) -> None:
        """Replace words such as max and sigmoid; split pieces at choices and around quotients 0/0."""

        def settings() -> list[dict[str, float]]:
            ends = [values for p in self.trainable for values in self.ends_of(p.name)]
            return [*self.sample_values(), *self.stress_values(), *ends]

        plain = {
            "pieces": quotients_by_series(plain_pieces(self.pieces, settings, self.where)),
            "surrogate": plain_pieces(self.surrogate, settings, self.where),
            "anchor": tuple(plain_text(text, self.where) for text in self.anchor),
        }
        for name, value in plain.items():
            if value != getattr(self, name):
                object.__setattr__(self, name, value)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of what the spec computes, hexadecimal: its identity. Names are not in it.

        Fields that are left at their defaults are not hashed: a field that is added to the
        language later changes no identity.
        """
        return sha256_value(_identity(self, skip=_DESCRIPTIVE))


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


_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
MAX_CHARACTERS = 4000
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_WORD = re.compile(r"[A-Za-z_]\w*")
_COMPAT_FUNCTIONS = ("min", "max")
# Functions that another library's order of evaluation may call; `codegen.compat` spells each with torch.
COMPAT_KNOWN = ("exp", "expm1", "log", "sqrt", "tanh", "atan", "erf", "logistic", "min", "max")
_REACHED = ", which training may reach: bound the parameter, or move the knot"
_TAKEN = ("torch", "primitives", "parameters")  # by the source of every kernel


def problems_of(spec: UncheckedSpec) -> list[str]:
    """Every problem of a spec, as text, in the order in which to fix them.

    Later checks rely on earlier ones having passed, so the first group with a problem ends the
    search.
    """
    for group in (_names, _parameters, _gradient, _jumps, _surrogate, _up, _integrals, _compat):
        problems = list(group(spec))
        if problems:
            return problems
    return []


def text_problems(spec: UncheckedSpec) -> Iterator[str]:
    """Every text that is not one plain line, and every name of a compat order that is not a name.

    Titles, sources and names of another library's constants are written as they are into a
    docstring, a comment and a signature of the kernel's source, so none may contain a line break
    or other code.

    Checked  tests/unit/activations/test_user_spec.py
    """
    texts = [("title", spec.title), ("source", spec.source), ("notes", spec.notes)]
    texts += [("peer", peer) for peer in spec.peers]
    names = []
    anchors = [("the anchor", spec.anchor)]
    if isinstance(spec.arity, Gated) and spec.arity.up is not None:
        anchors.append(("the anchor of the up factor", spec.arity.up.anchor))
    for what, anchor in anchors:
        if len(anchor) != 2:
            yield f"{what} has {len(anchor)} formulas, not the two of a point and the value there"
    if spec.compat is not None:
        names = [spec.compat.name, *(constant.name for constant in spec.compat.constants)]
        texts.append(("compat source", spec.compat.source))
        texts += [("compat condition", piece.where) for piece in spec.compat.pieces]
    for what, text in texts:
        if len(text) > MAX_CHARACTERS:
            yield f"the {what} has {len(text)} characters, more than {MAX_CHARACTERS}"
        elif not text.isprintable():
            yield f"the {what} {text[:60]!r} is not one line of printable text"
        elif '"""' in text or "\\" in text:
            yield f"the {what} {text[:60]!r} holds a backslash or three quotation marks"
        elif what == "compat condition" and "#" in text:
            yield f"the {what} {text[:60]!r} holds a comment"
    for name in names:
        if not _IDENTIFIER.fullmatch(name) or keyword.iskeyword(name):
            yield f"{name[:60]!r} is not a name for a compat order or its constant"


def _names(spec: UncheckedSpec) -> Iterator[str]:
    parameters = [p.name for p in spec.parameters]
    for name in (spec.name, *spec.aliases, *parameters):
        if keyword.iskeyword(name):
            yield f"{name!r} is not a name: it is a keyword of Python"
        elif not _NAME.fullmatch(name):
            yield f"{name!r} is not a name: use a lower-case letter, then letters, digits or _"
    for name in parameters:
        if name in FUNCTIONS or name in CONSTANTS or name == VARIABLE:
            yield f"the parameter {name!r} has the name of something in the formula language"
        if name in _TAKEN:
            yield f"the parameter {name!r} has the name of something in every kernel"
    for name in dict.fromkeys(parameters):
        if parameters.count(name) > 1:
            yield f"the parameter {name!r} is given twice"
    if not spec.pieces:
        yield "there is no piece"
    for text in spec.anchor:
        if symbols(parse(text, where=spec.where)) - {*parameters}:
            yield f"the anchor {text!r} names something that is not a parameter"
    yield from _unknown_names(spec.pieces, spec.trees, spec.intervals, parameters, spec.where)


def unused_parameters(spec: UncheckedSpec) -> list[str]:
    """The parameters that neither a formula, knot or anchor nor the range of another one names."""
    used = _words(spec) | {p.above_name for p in spec.parameters}
    return [p.name for p in spec.parameters if p.name not in used]


def _words(spec: UncheckedSpec) -> set[str]:
    pieces = [*spec.pieces, *spec.surrogate]
    texts = [*spec.anchor, *(text for jump in spec.jumps for text in (jump.at, jump.by))]
    if isinstance(spec.arity, Gated) and spec.arity.up is not None:
        pieces += spec.arity.up.pieces
        texts += spec.arity.up.anchor
    if spec.compat is not None:
        pieces += spec.compat.pieces
    texts += [text for piece in pieces for text in (piece.where, piece.formula, piece.integral)]
    return {word for text in texts for word in _WORD.findall(text)}


def _unknown_names(
    pieces: Sequence[Piece],
    trees: Sequence[ast.expr],
    intervals: Sequence[PieceInterval],
    parameters: Sequence[str],
    where: str,
) -> Iterator[str]:
    for piece, tree, interval in zip(pieces, trees, intervals, strict=True):
        unknown = sorted(symbols(tree) - {VARIABLE, *parameters})
        if unknown:
            yield (
                f"piece {piece.where!r} uses the unknown name {unknown[0]!r}."
                f" {nearest(unknown[0], [VARIABLE, *parameters])}"
            )
        for bound in (interval.low, interval.high):
            if bound and symbols(parse(bound, where=where)) - {*parameters}:
                yield f"the knot {bound!r} of piece {piece.where!r} names no parameter"


def _parameters(spec: UncheckedSpec) -> Iterator[str]:
    by_name = {p.name: p for p in spec.parameters}
    values = spec.initial_values()
    for parameter in spec.parameters:
        if not is_finite(parameter.initial):
            shown = visible(repr(parameter.initial), 40)
            yield f"{parameter.name} starts at {shown}, which is not finite in double precision"
            continue
        match parameter.bijection:
            case Between(low=low, high=high) if not (is_finite(low) and is_finite(high)):
                shown = ", ".join(visible(repr(end), 40) for end in (low, high))
                yield f"the range of {parameter.name}, ({shown}), is not finite in double precision"
                continue
            case Between(low=low, high=high) if not low < high:
                yield f"{parameter.name} is between {low!r} and {high!r}, which is an empty range"
                continue
        name = parameter.above_name
        if name is not None:
            bound = by_name.get(name)
            if bound is None or bound is parameter:
                yield f"{parameter.name} is bounded by {name!r}, which is not another parameter"
                continue
            if bound.above_name is not None:
                yield f"{parameter.name} is above {name!r}, which has such a bound itself"
                continue
        limit = values[name] if name else (as_number(parameter.above or "0") or 0.0)
        broken = (
            ""
            if isinstance(parameter.bijection, Fixed)
            else parameter.broken(parameter.initial, limit)
        )
        if broken:
            yield (
                f"{parameter.name} starts at {parameter.initial!r}, which {broken}"
                f" ({parameter.constraint})"
            )
        elif isinstance(parameter.bijection, Absolute | Exp) and not math.isfinite(limit):
            yield f"the bound of {parameter.name} is not finite"


def _gradient(spec: UncheckedSpec) -> list[str]:
    problems = _gradient_at(spec, spec.sample_values())
    if problems:
        return problems
    reached = _gradient_at(spec, spec.stress_values())
    return [problem + _REACHED for problem in reached]


def _gradient_at(spec: UncheckedSpec, samples: Sequence[Mapping[str, float]]) -> list[str]:
    return gradient_problems(
        [(piece.where, tree) for piece, tree in zip(spec.pieces, spec.trees, strict=True)],
        spec.intervals,
        samples,
        spec.anchor,
        spec.continuity,
    )


def _jumps(spec: UncheckedSpec) -> Iterator[str]:
    parameters = {p.name for p in spec.parameters}
    for jump in spec.jumps:
        for text in (jump.at, jump.by):
            if symbols(parse(text, where=spec.where)) - parameters:
                yield f"the jump {text!r} names something that is not a parameter"
                return
        tested = [(values, "") for values in spec.sample_values()]
        tested += [(values, _REACHED) for values in spec.stress_values()]
        for values, ending in tested:
            for text in (jump.at, jump.by):
                if not math.isfinite(value_or_nan(text, values)):
                    yield no_value(f"the jump {text!r}", values) + ending
                    return
        for values in spec.sample_values():
            knots = [
                value_or_nan(bound, values)
                for interval in spec.intervals
                for bound in (interval.low, interval.high)
                if bound is not None
            ]
            if not any(knot == value_or_nan(jump.at, values) for knot in knots):
                yield f"f is declared to jump at {jump.at}, which is not a knot of the pieces"
                return


def _surrogate(spec: UncheckedSpec) -> Iterator[str]:
    if not spec.surrogate:
        return
    trainable = {p.name for p in spec.trainable}
    used = {name for piece in spec.surrogate for name in symbols(parse(piece.formula))}
    if used & trainable:
        yield (
            f"the surrogate uses the trainable parameter {sorted(used & trainable)[0]!r}: what it"
            " learns follows from f, so the surrogate may use fixed ones only"
        )
        return
    yield from _second_gradient(spec, "the surrogate", spec.surrogate, ("0", "0"), fixed=False)


def _up(spec: UncheckedSpec) -> Iterator[str]:
    factor = spec.arity.up if isinstance(spec.arity, Gated) else None
    if factor is not None:
        yield from _second_gradient(spec, "the up factor", factor.pieces, factor.anchor, fixed=True)


def _second_gradient(
    spec: UncheckedSpec, what: str, pieces: Sequence[Piece], anchor: tuple[str, str], *, fixed: bool
) -> Iterator[str]:
    allowed = [p.name for p in spec.parameters if not (fixed and p.trainable)]
    where = f"{spec.where}, {what}"
    trees = [parse(p.formula, where=where) for p in pieces]
    intervals = [parse_interval(p.where, where=where) for p in pieces]
    problems = list(_unknown_names(pieces, trees, intervals, allowed, where))
    if not problems:
        named = [(p.where, tree) for p, tree in zip(pieces, trees, strict=True)]
        problems = gradient_problems(named, intervals, spec.sample_values(), anchor, "jump")
    for problem in problems:
        yield f"{what}: {problem}"


def _integrals(spec: UncheckedSpec) -> Iterator[str]:
    known = {VARIABLE, *(p.name for p in spec.parameters)}
    for piece in spec.pieces:
        if not piece.integral:
            continue
        unknown = sorted(symbols(parse(piece.integral, where=spec.where)) - known)
        if unknown:
            yield f"the integral of piece {piece.where!r} uses the unknown name {unknown[0]!r}"


def _compat(spec: UncheckedSpec) -> Iterator[str]:
    if spec.compat is None:
        return
    what = f"compat {spec.compat.name!r}"
    if isinstance(spec.arity, Gated):
        yield f"{what} has no meaning for an activation of two inputs"
        return
    constants = [constant.name for constant in spec.compat.constants]
    parameters = [p.name for p in spec.parameters]
    for constant in spec.compat.constants:
        if not is_finite(constant.value):
            yield f"{what} has the constant {constant.name!r}, which is not finite"
    for name in constants:
        if name == VARIABLE or name in parameters or constants.count(name) > 1:
            yield f"{what} has a constant {name!r}, a name that is already used"
    known = {VARIABLE, *parameters, *constants}
    for piece in spec.compat.pieces:
        interval = parse_interval(piece.where, where=f"{spec.where}, {what}")
        # The bounds become part of the kernel's source: they are formulas like any other.
        texts = [piece.formula, *(bound for bound in (interval.low, interval.high) if bound)]
        for text in texts:
            tree = parse(text, where=f"{spec.where}, {what}", extra=_COMPAT_FUNCTIONS)
            unknown = sorted(symbols(tree) - known)
            if unknown:
                yield f"{what} uses the unknown name {unknown[0]!r}"
            for call in ast.walk(tree):
                if isinstance(call, ast.Call) and ast.unparse(call.func) not in COMPAT_KNOWN:
                    yield f"{what} calls {ast.unparse(call.func)!r}, which no order knows"
