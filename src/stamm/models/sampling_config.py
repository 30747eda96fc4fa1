"""Configuration of sampling. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stamm.base.bounds import AtLeastOne, Natural, NotNegative, PositiveShare, within
from stamm.base.config import Bounded


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Bounded):
    """Settings of sampling: how tokens are drawn.

    temperature      logits are divided by it; 0 takes the most likely token
    top_k            draw among the k most likely tokens; 0: among all
    top_p            draw among the fewest tokens whose probabilities reach it
    max_new_tokens   longest completion, stop token included
    slots            completions that are computed at once
    seed             of the random numbers
    """

    temperature: NotNegative = 1.0
    top_k: Natural = 0
    top_p: PositiveShare = 1.0
    max_new_tokens: AtLeastOne = 256
    slots: AtLeastOne = 16
    seed: Annotated[int, within("[0, 2^64)")] = 28
