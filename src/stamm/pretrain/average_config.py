"""Configuration of weight averaging. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stamm.base.bounds import AtLeastOne, at_least
from stamm.base.config import Bounded


@dataclass(frozen=True, kw_only=True)
class WeightAverage(Bounded):
    """Evaluation of the mean of the final weights and of the checkpoints before them.

    last    weights that are averaged, the final ones included
    every   steps between the checkpoints
    """

    last: Annotated[int, at_least(2)] = 4
    every: AtLeastOne = 20
