"""KL(pi || pi_ref) sampled from answers of the aligned model, and its distance to the optimum.

Checked  tests/unit/align/test_kl_divergence.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from stamm.align.results.bootstrap import Array, Bootstrap
from stamm.base.config import to_plain
from stamm.losses.quantile import optimum_kl, optimum_mean_quantile

_POINTS = 400
_SHOWN = 60
_BETAS = (100.0, 1e-5)


def kl_estimate(
    bootstrap: Bootstrap,
    log_ratios: Sequence[Sequence[Sequence[float]]],
    tokens: Sequence[Sequence[Sequence[int]]],
    recoded: float,
) -> dict[str, Any]:
    """The estimators of KL from log pi(y|x) - log pi_ref(y|x) of sampled answers, as a `KlEstimate`.

    log_ratios, tokens   [seed][prompt][answer]; a prompt may have none

    Source   J. Schulman, "Approximating KL divergence" (2020): k1 and k3
    """
    ratios = [[np.asarray(one, float) for one in row] for row in log_ratios]
    count = np.array([[len(one) for one in row] for row in ratios], float)
    total = np.array([[one.sum() for one in row] for row in ratios])
    with np.errstate(over="ignore"):
        third = np.array([[(np.exp(-one) - 1 + one).sum() for one in row] for row in ratios])
    length = np.array([[sum(one) for one in row] for row in tokens], float)
    return {
        "k1": to_plain(bootstrap.ratio(total, count)),
        "k3": to_plain(bootstrap.ratio(third, count)) if np.isfinite(third).all() else None,
        "per_token": to_plain(bootstrap.ratio(total, length)),
        "recoded": recoded,
    }


class OptimumCurve:
    """Mean quantile of the optimal policy as a function of its KL, identity transform.

    Tabulated over beta, and interpolated between; from (0, 1/2), with quantile 1/2 + sqrt(KL / 6) near it.
    """

    def __init__(self) -> None:
        first, last = map(math.log, _BETAS)
        self._betas = [math.exp(first + (last - first) * i / _POINTS) for i in range(_POINTS + 1)]
        self._kl = np.array([optimum_kl(beta) for beta in self._betas])
        self._quantile = np.array([optimum_mean_quantile(beta) for beta in self._betas])

    def quantile(self, kl: Array) -> Array:
        """The largest mean quantile at a KL; 1/2 for a KL below 0, as a sampled one may be."""
        # Between points of the table, the square root of KL is nearly linear in the quantile.
        root = np.sqrt(np.maximum(kl, 0.0))
        inside = np.interp(root, [0.0, *np.sqrt(self._kl)], [0.5, *self._quantile])
        # A small beta has KL = log(1 / beta) - 1 and mean quantile 1 - beta.
        far = 1 - np.exp(-1 - np.maximum(kl, 0.0))
        return np.asarray(np.where(kl > self._kl[-1], far, inside), dtype=np.float64)

    def kl(self, quantile: float) -> float | None:
        """The smallest KL of a mean quantile above 1/2; 0 below; None beyond the table."""
        if quantile > self._quantile[-1]:
            return None
        return float(np.interp(quantile, [0.5, *self._quantile], [0.0, *np.sqrt(self._kl)])) ** 2

    def points(self) -> list[dict[str, float]]:
        """Points of the curve for drawing, from the start model on."""
        step = _POINTS // _SHOWN
        return [
            {"beta": b, "kl": float(k), "quantile": float(q)}
            for b, k, q in list(zip(self._betas, self._kl, self._quantile, strict=True))[::step]
        ]


def optimum_gap(
    bootstrap: Bootstrap,
    log_ratios: Sequence[Sequence[Sequence[float]]],
    quantile_SP: Array,
    beta: float | None,
) -> dict[str, Any]:
    """Distance of (KL by k1, mean quantile) to the curve, as an `OptimumGap`."""
    curve = OptimumCurve()
    total = np.array([[sum(one) for one in row] for row in log_ratios])
    count = np.array([[len(one) for one in row] for row in log_ratios], float)
    kl, mean = bootstrap.estimate(total, count), bootstrap.estimate(quantile_SP)
    best = float(curve.quantile(np.array([kl]))[0])
    below = curve.quantile(bootstrap.draws(total, count)) - bootstrap.draws(quantile_SP)
    least = curve.kl(mean)
    target = None
    if beta is not None:
        target = {
            "beta": beta, "kl": optimum_kl(beta), "quantile": optimum_mean_quantile(beta),
        }  # fmt: skip
    return {
        "best_quantile": best,
        "below": to_plain(bootstrap.interval(best - mean, below)),
        "excess_kl": None if least is None else kl - least,
        "target": target,
    }
