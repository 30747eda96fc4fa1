"""Configuration of the choice of settings by validation prompts. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class ArmCandidates:
    """Settings of one objective that are compared.

    name       of the arm
    settings   of each candidate, as on the command line: (("schedule.peak=1e-4",), ...)
    """

    name: str
    settings: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        validate(self, ("settings", bool(self.settings), "is empty"))


@dataclass(frozen=True, kw_only=True)
class ChooseConfig:
    """Choice of the settings with the highest mean reward; the first of equals.

    arms   the candidates of each objective
    """

    arms: tuple[ArmCandidates, ...] = ()
