"""Options of preference losses, for configurations and losses alike. No torch here."""

from __future__ import annotations

from typing import Literal

Ties = Literal["le", "mid"]
Transform = Literal["identity", "log", "square", "sqrt", "probit"]
Partition = Literal["exact", "empirical", "grid", "released", "released_anyway"]
LengthNormalization = Literal["none", "beta", "loss"]
FeatureDistance = Literal["squared", "relative", "cosine"]
AdvantageScale = Literal["std", "none"]
TokenAverage = Literal["answer", "token", "longest"]


def closed_form_beta(
    beta: float, transform: str, normalize: str, largest_beta: float | None
) -> float | None:
    """The beta of all answers with which QRPO's optimum has a closed form; None: it has none.

    It has one for the identity transform, and where beta does not depend on the answer's length.
    """
    if transform != "identity" or normalize == "beta":
        return None
    return beta if largest_beta is None else min(beta, largest_beta)
