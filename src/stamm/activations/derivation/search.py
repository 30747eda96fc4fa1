"""SymPy's integrator, in a subprocess with a time limit."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache

import sympy
from sympy import Expr

from stamm.activations.derivation.primitives import Primitive, X
from stamm.activations.derivation.symbolic import elementary

# Functions that a formula may contain, to be evaluated and emitted.
_UNDERSTOOD = (
    sympy.exp,
    sympy.log,
    sympy.sin,
    sympy.cos,
    sympy.tan,
    sympy.asin,
    sympy.atan,
    sympy.sinh,
    sympy.cosh,
    sympy.tanh,
    sympy.asinh,
    sympy.acosh,
    sympy.erf,
    sympy.erfc,
    Primitive,
)
# Input and output are text: the srepr of a parsed formula, and nothing else.
_PROGRAM = """
import sys
import sympy
found = sympy.integrate(sympy.sympify(sys.stdin.read()), sympy.Symbol("x", real=True))
sys.stdout.write(sympy.srepr(found))
"""


@lru_cache(maxsize=256)
def searched(gradient: Expr, seconds: float) -> Expr | None:
    """The antiderivative that SymPy finds in time, if it is real and made of known functions.

    Edge     None when the search fails or takes too long, and where Python has no executable.
    Checked  tests/unit/activations/test_integrate.py
    """
    if not sys.executable:
        return None
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", _PROGRAM],
            input=sympy.srepr(elementary(gradient)),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    if ended.returncode != 0:
        return None
    found = sympy.sympify(ended.stdout)
    strange = found.has(sympy.I, sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
    if strange or found.atoms(sympy.Integral, sympy.RootSum, sympy.Piecewise):
        return None
    if not found.free_symbols <= gradient.free_symbols | {X}:
        return None
    known = all(isinstance(f, _UNDERSTOOD) for f in found.atoms(sympy.Function))
    return found if known else None
