"""Configuration of the check of a user's activation. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stamm.activations.spec import Spec
from stamm.base.bounds import at_least
from stamm.base.config import Bounded


@dataclass(frozen=True, kw_only=True)
class ActivationCheckConfig(Bounded):
    """A user's activation, and how many float32 inputs are compared with its integral.

    inputs   float32 inputs; of bfloat16 and float16 all 65,536 are compared
    """

    spec: Spec
    inputs: Annotated[int, at_least(1000)] = 10_000
