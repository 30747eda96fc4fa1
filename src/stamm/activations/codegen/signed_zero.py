"""Signed zeros: formulas that vanish at 0 as a product with x, so that f(-0) is -0.

A sum such as b*x + a*phi2(x) is +0 at -0, whatever its terms are: -0 + 0 is 0. The equal product
x*(b + a*phi2(x)/x) keeps the sign, and has as many digits and one multiplication less.
"""

from __future__ import annotations

import sympy
from sympy import Expr, Function

from stamm.activations.derivation.formulas import Branch
from stamm.activations.derivation.primitives import X, phi2

phi2_over = Function("phi2_over")  # phi2(u)/u, without the division


def owns_zero(branch: Branch) -> bool:
    """Whether x = 0 belongs to the branch; False where its ends move with parameters."""
    if branch.low.free_symbols or branch.high.free_symbols:
        return False
    above = branch.low < 0 or (branch.low == 0 and branch.low_closed)
    below = branch.high > 0 or (branch.high == 0 and branch.high_closed)
    return bool(above and below)


def factor_out_x(formula: Expr) -> Expr:
    """The formula as x times the rest, where it is a sum of multiples of x; else as it is.

    Edge     of a product each factor likewise
    Checked  tests/unit/activations/test_signed_zero.py
    """
    if formula.is_Mul:
        return sympy.Mul(*map(factor_out_x, formula.args))
    if not formula.is_Add:
        return formula
    divided = [_over_x(term) for term in formula.args]
    if any(term is None for term in divided):
        return formula
    rest = sympy.Add(*divided)
    return sympy.Mul(X, rest, evaluate=False) if rest.is_Add else formula


def _over_x(term: Expr) -> Expr | None:
    """term/x, or None where that has x left in the denominator."""
    factors = [sympy.factor_terms(f) if f.is_Add else f for f in sympy.Mul.make_args(term)]
    for place, factor in enumerate(factors):
        if isinstance(factor, phi2) and (factor.args[0] / X).is_Rational:
            factors[place] = factor.args[0] * phi2_over(factor.args[0])
            break
    found = sympy.Mul(*factors) / X
    left = found.as_powers_dict().get(X, sympy.S.Zero)
    return found if left.is_nonnegative else None
