"""chosen.json: the settings of each objective that did best on validation prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Settings that were tried, as on the command line, and their mean reward on validation prompts."""

    settings: tuple[str, ...]
    mean_reward: float


@dataclass(frozen=True, kw_only=True)
class ChosenSettings:
    """Settings of one objective.

    settings     of the best candidate
    candidates   all that were tried, in order
    """

    settings: tuple[str, ...]
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ChosenFile:
    """chosen.json by objective."""

    SCHEMA: ClassVar[int] = 1

    arms: Mapping[str, ChosenSettings] = field(default_factory=dict)
