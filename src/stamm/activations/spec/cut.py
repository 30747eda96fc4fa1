"""A rectified power that is 0 up to a threshold: f where f > 1, else 0. No torch here."""

from __future__ import annotations

from dataclasses import replace

from stamm.activations.spec.gradient_checks import value_of
from stamm.activations.spec.spec import Spec
from stamm.activations.spec.unchecked import Gated, Jump, Piece
from stamm.base.errors import ConfigError

_TESTED = (0.25, 1.0, 3.0)
_LARGEST_POWER = 8


def rectified_power(spec: Spec) -> int | None:
    """p where f(x) = max(x, 0)^p, of one input or times up; None for any other function.

    By the stated gradient: 0 below the knot at 0, p x^(p - 1) above it.
    """
    two_inputs = isinstance(spec.arity, Gated) and spec.arity.up is not None
    if spec.parameters or two_inputs or spec.jumps or spec.surrogate or spec.anchor != ("0", "0"):
        return None
    by_place = {piece.where: piece.formula for piece in spec.pieces}
    below = next((by_place[w] for w in ("x <= 0", "x < 0") if w in by_place), None)
    above = next((by_place[w] for w in ("x > 0", "x >= 0") if w in by_place), None)
    if len(by_place) != 2 or below is None or above is None or value_of(below, {"x": -1.0}) != 0:
        return None
    slopes = {x: value_of(above, {"x": x}) for x in _TESTED}
    for power in range(1, _LARGEST_POWER + 1):
        if all(abs(slopes[x] - power * x ** (power - 1)) <= 1e-12 * slopes[1.0] for x in _TESTED):
            return power
    return None


def cut_at_one(spec: Spec) -> Spec:
    """f where f > 1, else 0, NAME_cut: it jumps by 1 at x = 1.

    One threshold serves every layer and unit: c^p f(x) = f(c x), so that a threshold t becomes 1 in units of
    the matrices before and after the activation.

    Raises   ConfigError for a function other than max(x, 0)^p, whose scale no matrix takes up
    Checked  tests/unit/activations/test_cut.py
    """
    power = rectified_power(spec)
    if power is None:
        up = isinstance(spec.arity, Gated) and spec.arity.up is not None
        raise ConfigError(
            f"{spec.name} is {'a gate times a function of up' if up else 'not max(x, 0)^p'}: a threshold for it"
            " cannot be folded into the matrices",
            where="activation",
            fix="Set activation=reglu for a gated block, activation=relu2 for one of one input",
        )
    slope = "1" if power == 1 else f"{power}*x" if power == 2 else f"{power}*x**{power - 1}"
    return replace(
        spec,
        name=f"{spec.name}_cut",
        title=f"{spec.title}; 0 where it is below 1"[:200],
        pieces=(Piece(where="x > 1", formula=slope), Piece(where="x <= 1", formula="0")),
        continuity="jump",
        jumps=(Jump(at="1", by="1"),),
        compat=None,
        aliases=(),
        notes="The threshold is folded into the matrices before and after it.",
        peers=(),
    )
