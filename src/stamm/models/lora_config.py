"""Configuration of low-rank adaptation (LoRA). No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from stamm.base.config import validate

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adaptation: W x + (alpha / rank) B A x, with W frozen and A and B trained.

    rank      rows of A and columns of B
    alpha     scale of the adapters, independent of the rank
    targets   the matrices of every layer that get adapters; a feed-forward block without a gate has
              no gate_proj. With train_activation there may be none: () trains the activations alone
    train_activation   also train the parameters of the activations (xIELU's alphas); everything
              else is frozen
    seed      of A; None: that of the run

    Source    Hu et al. 2022 (arXiv 2106.09685)
    """

    MAIN_FIELD: ClassVar = "rank"

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = TARGETS
    train_activation: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.targets if name not in TARGETS]
        validate(
            self,
            ("rank", self.rank >= 1, "must be at least 1"),
            ("alpha", 0 < self.alpha < math.inf, "must be positive and finite"),
            (
                "targets",
                bool(self.targets) or self.train_activation,
                "names no matrix, and train_activation is false",
            ),
            ("targets", not unknown, f"has names other than {', '.join(TARGETS)}"),
            ("targets", len(set(self.targets)) == len(self.targets), "names a matrix twice"),
        )

    @property
    def scale(self) -> float:
        """Factor of B A x."""
        return self.alpha / self.rank
