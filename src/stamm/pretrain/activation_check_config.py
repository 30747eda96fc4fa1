"""Configuration of the check of a user's activation. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.activations.spec import Spec
from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class ActivationCheckConfig:
    """A user's activation, and how many float32 inputs are compared with its integral.

    inputs   float32 inputs; of bfloat16 and float16 all 65,536 are compared
    """

    spec: Spec
    inputs: int = 10_000

    def __post_init__(self) -> None:
        validate(self, ("inputs", self.inputs >= 1000, "must be at least 1000"))
