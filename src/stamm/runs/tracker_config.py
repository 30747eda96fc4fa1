"""Configuration of trackers: TensorBoard, Trackio, Weights & Biases."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from stamm.base.config import validate

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """Event files in log/tensorboard/, for `tensorboard --logdir`. Needs no other package."""


@dataclass(frozen=True, kw_only=True)
class Trackio:
    """A project of Trackio, in the database of this account, for `trackio show`.

    space   "owner/name", a Space of the Hugging Face Hub; log in with `hf auth login`, the token is
            not part of the configuration. Empty: nothing leaves this machine
    """

    project: str = "stamm"
    space: str = ""

    def __post_init__(self) -> None:
        space = self.space.split("/") if self.space else []
        validate(
            self,
            ("project", _is_name(self.project), "must be letters, digits, '.', '-' and '_'"),
            ("space", len(space) in (0, 2) and all(map(_is_name, space)), "must be owner/name"),
        )


@dataclass(frozen=True, kw_only=True)
class WandB:
    """A project of Weights & Biases; log in with `wandb login`.

    entity   the team or the account; empty: the default of the login
    mode     "offline" stores the run in log/wandb/, for `wandb sync`
    """

    project: str = "stamm"
    entity: str = ""
    mode: Literal["online", "offline"] = "online"

    def __post_init__(self) -> None:
        validate(
            self,
            ("project", _is_name(self.project), "must be letters, digits, '.', '-' and '_'"),
            ("entity", not self.entity or _is_name(self.entity), "is not the name of an account"),
        )


TrackerConfig = TensorBoard | Trackio | WandB
