"""summary.json of selected answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class SelectionSummary:
    """Prompts whose sampled answers became training examples: prompts = kept + sum(dropped).

    examples     rows that were written
    references   smallest and largest number of reference rewards of a prompt; (0, 0) without any
    """

    SCHEMA: ClassVar[int] = 1

    prompts: int
    kept: int
    dropped: Mapping[str, int]
    examples: int
    references: tuple[int, ...]
    sha256: str
