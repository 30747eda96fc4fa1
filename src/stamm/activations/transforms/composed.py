"""Transforms that need the function itself: another anchor, powers, soft clamping, unit moment.

The function is derived first; the composition is stated as a gradient in the same language, with
the composed function as its known integral.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mpmath
import sympy
from sympy import Expr

from stamm.activations.derivation.derive import exact_formulas
from stamm.activations.derivation.formulas import Branch, bounds
from stamm.activations.derivation.primitives import X, logistic
from stamm.activations.derivation.symbolic import number
from stamm.activations.derivation.to_text import to_text
from stamm.activations.spec import Jump, Piece, Spec
from stamm.activations.spec.parameters import Fixed, Parameter
from stamm.activations.transforms.branches import (
    DIGITS,
    between,
    check_no_surrogate,
    check_sign,
    levels,
    piece_of,
    read,
    same_place,
    value_at,
    within,
)
from stamm.activations.transforms.gates import check_one_input
from stamm.activations.transforms.numbers import Number, made, number_text, with_new
from stamm.activations.transforms.rewriting import times
from stamm.base.errors import ConfigError

_TAIL = 14  # the normal density beyond it is below 1e-43


def reanchor(spec: Spec, at: float | str, *, name: str, title: str) -> Spec:
    """The same function, known at another place: the anchor becomes (at, f(at)).

    Raises   ConfigError when f jumps at that place.
    """
    check_one_input(spec)
    text = number_text(at, spec)
    place = read(text, spec)
    for jump in spec.jumps:
        if same_place(read(jump.at, spec), place, spec.sample_values()):
            raise ConfigError(f"{spec.name} jumps at {text}", where=spec.where)
    height = value_at(exact_formulas(spec).function, place, spec)
    return replace(spec, name=name, title=title, anchor=(text, to_text(height, where=spec.where)))


def power(spec: Spec, exponent: float, *, odd: bool = False, name: str, title: str) -> Spec:
    """f ** exponent, or with `odd` sign(f) * |f| ** exponent.

    exponent   a number of at least 1; below 1 the gradient is infinite where f is 0
    Raises     ConfigError when the exponent is below 1, or no integer where f is negative; with
               `odd`, when the places where f changes its sign depend on the parameters.
    """
    if not 1 <= exponent < float("inf"):
        raise ConfigError(
            f"the exponent of {spec.name} is {exponent!r}", where=spec.where, fix="Use 1 or more"
        )
    p = sympy.Rational(str(exponent))
    if odd and not (p.is_Integer and p.is_odd):
        return _odd_power(spec, p, name=name, title=title)
    if not p.is_Integer:
        for branch in exact_formulas(spec).function:
            check_sign(spec, branch, 1, f"has no real power {exponent:g} there")
    return _through(
        spec,
        lambda f: f**p,
        lambda f: p * f ** (p - 1),
        name=name,
        title=title,
        label=f"the power {exponent:g} of",
    )


def soft_clamp(spec: Spec, limit: Number, *, name: str, title: str) -> Spec:
    """limit * tanh(f / limit): small values are kept, none exceeds the limit.

    limit   a positive number or Parameter
    """
    check_one_input(spec)
    parameters = with_new(spec, (limit,))
    wider = replace(spec, parameters=parameters, compat=None)
    bound = read(number_text(limit, wider), wider)
    if any(number(bound, values) <= 0 for values in wider.sample_values()):
        raise ConfigError(f"the limit {bound} is not positive", where=spec.where)
    return _through(
        wider,
        # limit*tanh(u) and 1 - tanh(u)**2, by the logistic: its products vanish without a difference.
        lambda f: bound * (2 * logistic(2 * f / bound) - 1),
        lambda f: 4 * logistic(2 * f / bound) * logistic(-2 * f / bound),
        name=name,
        title=title,
        label="the softly clamped",
    )


def normalise(spec: Spec, *, name: str, title: str) -> Spec:
    """gain * f with E[(gain f(z))^2] = 1 for z from the standard normal distribution.

    The gain is computed for the initial parameter values by Gauss-Legendre quadrature at 30
    digits and kept as the fixed parameter `gain`.

    Raises   ConfigError when f has a parameter `gain`, or is 0 wherever the density is not.
    """
    check_one_input(spec)
    with mpmath.workdps(DIGITS):
        moment = second_moment(spec)
        if not moment > 0:
            raise ConfigError(f"{spec.name} is 0 everywhere: no gain helps", where=spec.where)
        gain = Parameter(name="gain", initial=float(1 / mpmath.sqrt(moment)), bijection=Fixed())
    return made(
        spec,
        name=name,
        title=title,
        pieces=tuple(_scaled(piece) for piece in spec.pieces),
        parameters=with_new(spec, (gain,)),
        anchor=(spec.anchor[0], times("gain", spec.anchor[1])),
        jumps=tuple(Jump(at=j.at, by=times("gain", j.by)) for j in spec.jumps),
        surrogate=tuple(_scaled(piece) for piece in spec.surrogate),
        source=f"{spec.source}; {spec.name} with a unit Gaussian second moment",
    )


def second_moment(spec: Spec) -> Any:
    """E[f(z)^2] for standard normal z at the initial parameter values, as an mpmath number."""
    values = spec.initial_values()
    total = mpmath.mpf(0)
    for branch in exact_formulas(spec).function:
        low, high = (within(end, _TAIL) for end in bounds(branch, values))
        if low >= high:
            continue
        inner = [mpmath.mpf(k) for k in range(-_TAIL, _TAIL) if low < k < high]

        def weighted(x: Any, formula: Expr = branch.formula) -> Any:
            return number(formula, {**values, X.name: x}) ** 2 * mpmath.npdf(x)

        total += mpmath.quad(weighted, [low, *inner, high], method="gauss-legendre", maxdegree=5)
    return total


def _through(
    spec: Spec,
    outer: Callable[[Expr], Expr],
    slope: Callable[[Expr], Expr],
    *,
    name: str,
    title: str,
    label: str,
) -> Spec:
    """outer(f), with outer' given by `slope`: the chain rule, branch by branch."""
    check_one_input(spec)
    check_no_surrogate(spec)
    stated = exact_formulas(spec)
    pieces = []
    for whole, rate in zip(stated.function, stated.slope, strict=True):
        formula = to_text(slope(whole.formula) * rate.formula, where=spec.where)
        known = to_text(outer(whole.formula), where=spec.where)
        pieces.append(piece_of(whole, formula, known, spec))
    jumps = []
    for left, right in itertools.pairwise(stated.function):
        if any(same_place(read(j.at, spec), left.high, spec.sample_values()) for j in spec.jumps):
            before, after = (outer(b.formula.subs(X, left.high)) for b in (left, right))
            at = to_text(left.high, where=spec.where)
            jumps.append(Jump(at=at, by=to_text(after - before, where=spec.where)))
    place, height = spec.anchor
    return made(
        spec,
        name=name,
        title=title,
        pieces=tuple(pieces),
        anchor=(place, to_text(outer(read(height, spec)), where=spec.where)),
        jumps=tuple(jumps),
        source=f"{spec.source}; {label} {spec.name}",
    )


def _odd_power(spec: Spec, p: Expr, *, name: str, title: str) -> Spec:
    """sign(f)*|f|**p, stated without either: on pieces that end where f changes its sign."""
    check_one_input(spec)
    check_no_surrogate(spec)
    if spec.jumps:
        raise ConfigError(f"{spec.name} jumps, so its odd power cannot be stated", where=spec.where)
    stated = exact_formulas(spec)
    pieces = []
    with mpmath.workdps(DIGITS + 10):
        for whole, rate in zip(stated.function, stated.slope, strict=True):
            for low, high, over in levels(whole, sympy.S.Zero, spec.initial_values()):
                part, sign = between(whole, low, high), 1 if over else -1
                check_sign(spec, part, sign, f"it must keep its sign for {_interval_text(part)}")
                size = sign * whole.formula
                formula = to_text(p * size ** (p - 1) * rate.formula, where=spec.where)
                pieces.append(piece_of(part, formula, to_text(sign * size**p), spec))
    place, height = spec.anchor
    value = read(height, spec)
    return made(
        spec,
        name=name,
        title=title,
        pieces=tuple(pieces),
        anchor=(place, to_text(sympy.sign(value) * sympy.Abs(value) ** p, where=spec.where)),
        source=f"{spec.source}; the odd power {float(p):g} of {spec.name}",
    )


def _interval_text(branch: Branch) -> str:
    return f"{branch.low} < x < {branch.high}"


def _scaled(piece: Piece) -> Piece:
    known = times("gain", piece.integral) if piece.integral else ""
    return replace(piece, formula=times("gain", piece.formula), integral=known)
