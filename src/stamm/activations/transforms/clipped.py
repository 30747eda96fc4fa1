"""Transforms that clip a function by its own value: a ceiling, or a return to zero."""

from __future__ import annotations

from dataclasses import replace

import mpmath
import sympy

from stamm.activations.derivation.derive import exact_formulas
from stamm.activations.derivation.formulas import bounds
from stamm.activations.derivation.symbolic import number
from stamm.activations.derivation.to_text import to_text
from stamm.activations.spec import Jump, Piece, Spec
from stamm.activations.transforms.branches import (
    DIGITS,
    between,
    check_no_surrogate,
    levels,
    piece_of,
    read,
    side_of,
    value_at,
)
from stamm.activations.transforms.gates import check_one_input
from stamm.activations.transforms.numbers import Number, made, number_text, with_new
from stamm.activations.transforms.rewriting import times
from stamm.base.errors import ConfigError


def clip_output(spec: Spec, ceiling: float, *, name: str, title: str) -> Spec:
    """min(f, ceiling), for a function without trainable parameters.

    The places where f crosses the ceiling are found between -64 and 64, to 30 digits.

    Edge     where f is above the ceiling the gradient is 0, at a crossing that of f. A function
             that touches the ceiling without crossing it is left as it is.
    Raises   ConfigError when the function jumps, or has trainable parameters, with which its
             crossings would move.
    """
    check_one_input(spec)
    check_no_surrogate(spec)
    if spec.trainable or spec.jumps:
        why = "has trainable parameters" if spec.trainable else "jumps"
        raise ConfigError(
            f"{spec.name} {why}, so its crossings of {ceiling:g} are not fixed numbers",
            where=spec.where,
            fix="Use soft_clamp, which needs no crossing",
        )
    values = spec.initial_values()
    level = sympy.Rational(str(ceiling))
    pieces: list[Piece] = []
    start, _ = spec.anchor
    with mpmath.workdps(DIGITS + 10):
        origin = number(read(start, spec), values)
        anchor: tuple[str, str] | None = None
        stated = exact_formulas(spec)
        for whole, slope in zip(stated.function, stated.slope, strict=True):
            for low, high, over in levels(whole, level, values):
                part = between(whole, low, high)
                formula = "0" if over else to_text(slope.formula, where=spec.where)
                known = "" if over else to_text(whole.formula, where=spec.where)
                pieces.append(piece_of(part, formula, known, spec))
                left, right = bounds(part, values)
                if anchor is None and left <= origin <= right:
                    anchor = (start, number_text(ceiling, spec)) if over else spec.anchor
    assert anchor is not None, "the branches cover every number"
    return made(
        spec,
        name=name,
        title=title,
        pieces=tuple(pieces),
        anchor=anchor,
        continuity="singular" if spec.continuity == "singular" else "jump",
        source=f"{spec.source}; {spec.name} with its output clipped at {ceiling:g}",
    )


def clip_to_zero(spec: Spec, high: Number, *, name: str, title: str) -> Spec:
    """f(x) for x <= high and 0 beyond: implausibly large inputs are treated as faults.

    The function jumps at `high` by -f(high), which is stated as its jump.

    Source   Hoang, Hanif and Shafique 2019, FT-ClipAct (1912.00941), for the rectifier
    Raises   ConfigError when the anchor or another jump of f lies at or beyond `high`.
    """
    check_one_input(spec)
    check_no_surrogate(spec)
    parameters = with_new(spec, (high,))
    wider = replace(spec, parameters=parameters, compat=None)
    samples = wider.sample_values()
    text = number_text(high, wider)
    knot = read(text, wider)
    for place in (spec.anchor[0], *(jump.at for jump in spec.jumps)):
        if any(number(read(place, wider), v) >= number(knot, v) for v in samples):
            raise ConfigError(
                f"{spec.name} is stated at x = {place}, which is not below {text}",
                where=spec.where,
            )
    stated = exact_formulas(wider)
    pieces = []
    for whole, slope in zip(stated.function, stated.slope, strict=True):
        sides = {side_of(whole, knot, values) for values in samples}
        if len(sides) > 1:
            raise ConfigError(
                f"which piece of {spec.name} holds {text} depends on the parameters",
                where=spec.where,
            )
        side = sides.pop()
        if side > 0:
            continue
        part = whole if side < 0 else between(whole, whole.low, knot)
        formula = to_text(slope.formula, where=spec.where)
        pieces.append(piece_of(part, formula, to_text(whole.formula, where=spec.where), spec))
    pieces.append(Piece(where=f"x > {text}", formula="0"))
    height = to_text(value_at(stated.function, knot, wider), where=spec.where)
    return made(
        wider,
        name=name,
        title=title,
        pieces=tuple(pieces),
        jumps=(*spec.jumps, Jump(at=text, by=times("-1", height))),
        continuity="singular" if spec.continuity == "singular" else "jump",
        source=f"{spec.source}; {spec.name} returned to 0 beyond {text}",
    )
