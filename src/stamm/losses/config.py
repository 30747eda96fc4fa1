"""Configuration of loss masks: Goldfish, and the rule at document borders. No numpy here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from stamm.base.bounds import AtLeastOne, NotNegative, Positive, at_least, within
from stamm.base.config import Bounded

Rule = Literal["stamm", "released", "report"]
"""Loss mask at document borders: see `losses.loss_mask`."""


@dataclass(frozen=True, kw_only=True)
class Goldfish(Bounded):
    """Goldfish loss: one token in `k` is masked, by a hash of the last `h` tokens, itself included.

    hash   "stamm": order-sensitive, never across a document border, ids salted, modulo 2^64.
           "apertus": the released code bit for bit, with its defect: the product of h ids wraps
           to 0 for 19 to 34 % of real windows, which are then never masked, so that 1.15 to
           1.45 % of tokens are dropped instead of 2 %.
    """

    MAIN_FIELD: ClassVar = "k"

    k: Annotated[int, at_least(2, ": with 1 every token would be dropped")] = 50
    h: AtLeastOne = 50
    hash: Literal["stamm", "apertus"] = "stamm"
    salt: Annotated[int, within("[0, 2^64)")] = 0


@dataclass(frozen=True, kw_only=True)
class Density(Bounded):
    """Density loss: weight times the mean of h^2 / (h^2 + epsilon) over the units of all feed-forward blocks.

    h is the output of the activation, in a gated block times up. The mean is a smooth count of the
    units that are not 0, as Geman and McClure's function (1985).

    weight    0: the mean is recorded and changes nothing
    epsilon   a unit with h^2 = epsilon counts half; the units that act behind a threshold have f >= 1
    """

    MAIN_FIELD: ClassVar = "weight"

    weight: NotNegative = 0.1
    epsilon: Positive = 1.0
