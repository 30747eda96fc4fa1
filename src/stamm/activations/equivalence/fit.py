"""Fits one curve to another: linear numbers by projection, the others by damped Gauss-Newton.

The model is c*g(a x + b; parameters) + d x + e. For given a, b and parameters the rest is a linear
least squares problem, which is solved in every step; only the others are searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from stamm.activations.equivalence.curves import Array

_STEP = 1e-7  # of the difference quotient
_LARGEST = 1e9


def project(model: Array, line: Array, target: Array) -> tuple[float, Array]:
    """The c for which c*model plus a straight line is nearest to the target, and the residual.

    model    the model's curve, weighted, (N,)
    line     an orthonormal basis of the weighted straight lines, (N, 2)
    target   the target without its best straight line, weighted, (N,)
    Edge     a model that is itself a straight line, or has no finite values, leaves the target.
    """
    if not np.isfinite(model).all() or np.abs(model).max() > _LARGEST:
        return 0.0, np.full_like(target, 1e3)
    bent = model - line @ (line.T @ model)
    size = float(bent @ bent)
    if size <= 1e-24 * max(float(model @ model), 1e-300):
        return 0.0, target
    c = float(bent @ target) / size
    return c, target - c * bent


def search(
    residual: Callable[[Array], Array],
    start: Sequence[float],
    allowed: Callable[[Array], bool],
    *,
    steps: int,
    enough: float = 1e-13,
) -> tuple[Array, float]:
    """The numbers near `start` with the smallest norm of the residual, and that norm.

    Levenberg's damping, with Marquardt's scale; a step that leaves what is `allowed`, or does not
    help, is shortened.
    """
    u = np.array(start, dtype=float)
    r = residual(u)
    best = float(r @ r)
    damping = 1e-3
    for _ in range(steps):
        if not math.isfinite(best) or best <= enough**2:
            break
        columns = []
        for i in range(len(u)):
            moved = u.copy()
            moved[i] += _STEP * max(1.0, abs(u[i]))
            columns.append((residual(moved) - r) / (moved[i] - u[i]))
        jacobian = np.stack(columns, axis=1)
        normal = jacobian.T @ jacobian
        if not np.isfinite(normal).all():
            break
        scale = np.diag(np.diag(normal) + 1e-12)
        improved = False
        for _ in range(8):
            move = np.linalg.solve(normal + damping * scale, -jacobian.T @ r)
            trial = u + move
            if allowed(trial):
                s = residual(trial)
                now = float(s @ s)
                if now < best:
                    improved = True
                    break
            damping = min(damping * 6 + 1e-12, 1e8)
        if not improved:
            break
        gain = 1 - now / best
        u, r, best = trial, s, now
        damping = max(damping / 12, 1e-14)
        if gain < 1e-6 and best > 1e-16:
            break
    return u, math.sqrt(best)
