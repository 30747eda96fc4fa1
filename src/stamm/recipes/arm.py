"""An arm of a study or a comparison."""

from __future__ import annotations

from dataclasses import dataclass, field

from stamm.base.config import validate
from stamm.models.config import GatedFFN, PlainFFN


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One candidate: its name in the run folder, and its feed-forward block."""

    name: str = "xielu"
    ffn: PlainFFN | GatedFFN = field(default_factory=PlainFFN)

    def __post_init__(self) -> None:
        plain = self.name.replace("_", "").replace("-", "")
        validate(
            self, ("name", plain.isalnum() and plain.isascii(), "must be letters, digits, - and _")
        )
