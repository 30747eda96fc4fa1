"""How a model is trained on this machine. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The machine side of training.

    threads            CPU threads; part of the configuration because sums depend on it
    compile            "layers" compiles one layer and shares it; "off" runs eagerly. Where no C++
                       compiler is found, "layers" runs eagerly and says so
    checkpoint_every   steps between checkpoints
    keep_checkpoints   how many of the newest are kept
    """

    threads: int = 2
    compile: Literal["layers", "off"] = "layers"
    checkpoint_every: int = 50
    keep_checkpoints: int = 2

    def __post_init__(self) -> None:
        validate(
            self,
            ("threads", self.threads >= 1, "must be at least 1"),
            ("checkpoint_every", self.checkpoint_every >= 1, "must be at least 1"),
            ("keep_checkpoints", self.keep_checkpoints >= 1, "must be at least 1"),
        )
