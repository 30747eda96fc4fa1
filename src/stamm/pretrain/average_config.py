"""Configuration of weight averaging. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class WeightAverage:
    """Evaluation of the mean of the final weights and of the checkpoints before them.

    last    weights that are averaged, the final ones included
    every   steps between the checkpoints
    """

    last: int = 4
    every: int = 20

    def __post_init__(self) -> None:
        validate(
            self,
            ("last", self.last >= 2, "must be at least 2"),
            ("every", self.every >= 1, "must be at least 1"),
        )
