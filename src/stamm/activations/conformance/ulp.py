"""Errors in units of the last place, their budgets, and rounding to a shorter dtype in one step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor


def ulps(result: Tensor, exact: Tensor) -> Tensor:
    """The error of `result` in units of the last place of `exact` in the dtype of `result`.

    exact    the true values, in float64
    Edge     below the smallest normal number the unit is the smallest subnormal; where `exact`
             overflows the dtype, an infinity of the right sign counts as 0.
    """
    error = (result.double() - exact).abs() / unit(exact, result.dtype)
    overflow = torch.isinf(result) & overflows(exact, result.dtype)
    overflow &= result.sign() == exact.sign()
    return torch.where(overflow, torch.zeros_like(error), error)


def unit(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbours of `dtype` at each value, in float64."""
    information = torch.finfo(dtype)
    magnitude = exact.abs().clamp(min=information.tiny)
    # The quotient is a power of two, exactly; torch.ldexp would form it in float32.
    return magnitude / torch.frexp(magnitude)[0] * (information.eps / 2)


def overflows(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Where the nearest value of `dtype` is an infinity: from the largest number plus half a unit.

    That sum is the middle between the largest number and the power of two above it; a tie is
    rounded to the even one of the two, which is infinity.
    """
    largest = torch.tensor(torch.finfo(dtype).max, dtype=torch.float64)
    return exact.abs() >= largest + unit(largest, dtype) / 2


def rounded(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 values in `dtype`, to nearest with ties to even, rounded once.

    torch converts float64 to bfloat16 by way of float32, which rounds twice.
    """
    if dtype == torch.float64:
        return exact
    over = overflows(exact, dtype)
    step = unit(torch.where(over, torch.zeros_like(exact), exact), dtype)
    nearest = torch.round(torch.where(over, torch.zeros_like(exact), exact) / step) * step
    infinite = torch.full_like(exact, torch.inf).copysign(exact)
    # A zero that was rounded to keeps the sign of the value.
    return torch.where(over, infinite, nearest.copysign(exact)).to(dtype)


def neighbours(points: Tensor) -> Tensor:
    """Each point with the value just below and just above it in the same dtype."""
    infinity = torch.full_like(points, torch.inf)
    return torch.stack(
        [torch.nextafter(points, -infinity), points, torch.nextafter(points, infinity)], -1
    ).reshape(-1)


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype's name without its package: bfloat16."""
    return str(dtype).removeprefix("torch.")


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


def without_squares(general: Budget) -> Budget:
    """A budget of bfloat16 that leaves out inputs whose squares overflow float32."""
    return replace(_SQUARES, ulp=general.ulp, reach=min(general.reach, _SQUARES.reach))


def at_range_ends(general: Budget) -> Budget:
    """A budget where a parameter is 32 or 1/32: products with its powers may overflow earlier."""
    return replace(general, room=general.room * _AT_ENDS) if general.room > 1 else general


def parameter_budget(name: str, dtype: str) -> Budget:
    """The budget of slopes in parameters: at least the general one.

    A slope in a stored number is a product with the slope of the constraint, formed in the dtype of
    the parameter.
    """
    return max(budget(name, dtype), _OTHERS[dtype], key=lambda budget: budget.ulp)
