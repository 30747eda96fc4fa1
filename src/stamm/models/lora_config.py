"""Configuration of low-rank adaptation (LoRA). No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from stamm.base.bounds import AtLeastOne, Positive, Seed, distinct
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

    rank: AtLeastOne = 16
    alpha: Positive = 32.0
    targets: Annotated[tuple[str, ...], distinct("names a matrix twice")] = TARGETS
    train_activation: bool = False
    seed: Seed | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.targets if name not in TARGETS]
        validate(
            self,
            (
                "targets",
                bool(self.targets) or self.train_activation,
                "names no matrix, and train_activation is false",
            ),
            ("targets", not unknown, f"has names other than {', '.join(TARGETS)}"),
        )

    @property
    def scale(self) -> float:
        """Factor of B A x."""
        return self.alpha / self.rank
