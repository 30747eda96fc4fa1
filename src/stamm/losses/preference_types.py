"""Options of preference losses, for configurations and losses alike. No torch here."""

from __future__ import annotations

from typing import Literal

Ties = Literal["le", "mid"]
Transform = Literal["identity", "log", "square", "sqrt", "probit"]
Partition = Literal["exact", "empirical", "grid", "released", "released_anyway"]
LengthNormalization = Literal["none", "beta", "loss"]
FeatureDistance = Literal["squared", "relative", "cosine"]
