"""Error budgets: the largest distance from the exact value, in units of the last place of its dtype.

0.5 is what rounding the exact value once costs: nothing can be nearer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

SHORT = ("bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The largest error allowed where the value is well conditioned, and why it is larger.

    room   above 1, an infinity of the right sign is allowed where the exact value is above the
           largest number of the dtype over this, and 0 where it is below the smallest normal one
    reach  inputs beyond it in magnitude are not judged
    """

    ulp: float
    reason: str = ""
    room: float = 1.0
    reach: float = math.inf


_OTHERS = {
    "bfloat16": Budget(
        ulp=1.0,
        reason="at the ends of its range, which is that of float32, it may overflow three binades"
        " early and lose subnormal numbers",
        room=8.0,
    ),
    "float16": Budget(ulp=1.0),
    "float32": Budget(ulp=4.0),
    "float64": Budget(ulp=1024.0, reason="the truth has no more digits itself"),
}
_SQUARES = Budget(
    ulp=1.0,
    reason="inputs beyond 2**62 are not judged: their squares overflow the float32 it is computed"
    " in; it may also overflow three binades early and lose subnormal numbers",
    room=8.0,
    reach=2.0**62,
)
_PRODUCTS = Budget(
    ulp=1.0,
    reason="inputs beyond 2**120 are not judged: times a parameter they overflow the float32 it is"
    " computed in; it may also overflow three binades early and lose subnormal numbers",
    room=8.0,
    reach=2.0**120,
)
_AT_ENDS = 2.0**10  # two powers of 32
# By the name of the entry, then by dtype. An entry is listed with a tighter budget, or with a
# larger one and its reason, which is printed with every verdict.
_ENTRIES: dict[str, dict[str, Budget]] = {
    "xielu": {
        "bfloat16": Budget(ulp=0.51),
        "float16": Budget(ulp=0.70),
        "float32": Budget(ulp=1.0),
    },
    **{
        name: {"bfloat16": _SQUARES}
        for name in (
            "xssslur2",
            "xssslupr",
            "gxssslur2",
            "gxssslupr",
            "squareplus",
            "bent_identity",
        )
    },
    **{
        name: {
            "bfloat16": _PRODUCTS,
            "float64": replace(_OTHERS["float64"], reach=2.0**1016),
        }
        for name in ("aglu", "acon_c", "ptelu", "sinlu", "snake", "snake_beta")
    },
}


def budget(name: str, dtype: str) -> Budget:
    """The budget of f and f' of the activation called `name` in `dtype`, as torch spells it."""
    return _ENTRIES.get(name, {}).get(dtype, _OTHERS[dtype])


def without_squares(of: Budget) -> Budget:
    """A budget of bfloat16 that leaves out inputs whose squares overflow float32."""
    return replace(_SQUARES, ulp=of.ulp, reach=min(of.reach, _SQUARES.reach))


def at_range_ends(of: Budget) -> Budget:
    """A budget where a parameter is 32 or 1/32: products with its powers may overflow earlier."""
    return replace(of, room=of.room * _AT_ENDS) if of.room > 1 else of


def parameter_budget(name: str, dtype: str) -> Budget:
    """The budget of slopes in parameters: at least the general one.

    A slope in a stored number is a product with the slope of the constraint, formed in the dtype of
    the parameter.
    """
    return max(budget(name, dtype), _OTHERS[dtype], key=lambda budget: budget.ulp)
