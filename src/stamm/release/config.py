"""Configuration of a release. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from stamm.base.bounds import distinct
from stamm.base.config import validate

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


@dataclass(frozen=True, kw_only=True)
class ReleaseConfig:
    """A released folder of one model.

    name         of the model; "": recipe and arm, "demo-xielu"
    formats      export targets to include; missing exports are made. (): every export that the arm
                 has, or transformers
    checkpoints  include the checkpoints of training
    answers      JSON file with the provider's answers to open questions of the model documentation,
                 by number: {"4.1": "https://..."}; "": none
    receipts     private folder of the key and the tree for consent receipts (`stamm receipt`); the
                 release holds the root. "": none
    """

    name: str = ""
    formats: Annotated[tuple[str, ...], distinct("names a format twice")] = ()
    checkpoints: bool = False
    answers: str = ""
    receipts: str = ""

    def __post_init__(self) -> None:
        known = not self.name or _NAME.fullmatch(self.name) is not None
        validate(self, ("name", known, "is not letters, digits, '.', '_' and '-' (at most 96)"))


@dataclass(frozen=True, kw_only=True)
class ReceiptConfig:
    """A consent receipt of a release.

    url        the address to ask for, in any spelling
    receipts   the private folder that `stamm release … receipts=FOLDER` was given
    """

    url: str = ""
    receipts: str = ""
