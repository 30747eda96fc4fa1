"""SymPy's integrator, in a subprocess with a limit of CPU time.

CPU time, so that what is found does not depend on what else the machine computes.
"""

from __future__ import annotations

import signal
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
# Wall time per second of CPU time: a process that waits, or that a busy machine rarely runs, ends too.
_PATIENCE = 20.0
# Input and output are text: the srepr of a parsed formula, and nothing else. SIGPROF ends a process.
_PROGRAM = """
import signal
import sys
import sympy
signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))
found = sympy.integrate(sympy.sympify(sys.stdin.read()), sympy.Symbol("x", real=True))
sys.stdout.write(sympy.srepr(found))
"""


class SearchStoppedError(Exception):
    """A search was stopped after its CPU time: whether there is an integral is not known."""


def searched(gradient: Expr, seconds: float) -> Expr | None:
    """The antiderivative that SymPy finds in time, if it is real and made of known functions.

    seconds  of CPU time
    Edge     None when there is none that fits, and where Python has no executable.
    Raises   SearchStoppedError when the time is up.
    Checked  tests/unit/activations/test_integrate.py
    """
    found, stopped = _outcome(gradient, seconds)
    if stopped:
        raise SearchStoppedError(f"no integral of {gradient} after {seconds:g} s of CPU time")
    return found


@lru_cache(maxsize=256)
def _outcome(gradient: Expr, seconds: float) -> tuple[Expr | None, bool]:
    """The antiderivative found, and whether the search was stopped before its end."""
    if not sys.executable:
        return None, False
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", _PROGRAM, str(seconds)],
            input=sympy.srepr(elementary(gradient)),
            capture_output=True,
            text=True,
            timeout=_PATIENCE * (seconds + 3.0),  # SymPy alone takes a second to import
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, True
    if ended.returncode != 0:
        return None, ended.returncode == -signal.SIGPROF
    return _usable(sympy.sympify(ended.stdout), gradient), False


def _usable(found: Expr, gradient: Expr) -> Expr | None:
    strange = found.has(sympy.I, sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
    if strange or found.atoms(sympy.Integral, sympy.RootSum, sympy.Piecewise):
        return None
    if not found.free_symbols <= gradient.free_symbols | {X}:
        return None
    known = all(isinstance(f, _UNDERSTOOD) for f in found.atoms(sympy.Function))
    return found if known else None
