"""Configuration of `stamm steer`. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from stamm.base.bounds import (
    AtLeastOne,
    Natural,
    Positive,
    Seed,
    Threads,
    at_least,
    distinct,
    not_empty,
)
from stamm.base.config import Bounded


@dataclass(frozen=True, kw_only=True)
class SteerConfig(Bounded):
    """Directions from the negative texts to the positive ones, and their measurement.

    positive       file of texts that the vector leads to: JSONL with "text" (plain, .gz or .zst)
    negative       file of texts that it leads away from
    method         "means": difference of the means of the residual stream behind the layer; "probe": normal of a logistic
                   regression of its tokens, with the length of that difference
    layers         layers whose direction is measured, from 0; None: all
    strengths      multiples of the direction that are measured
    kl             largest KL divergence from the unsteered model, in nats a token, of a vector that is recommended
    tokens         tokens of each kind of text at most: the first context of each text, in the order of the file
    batch_tokens   tokens of one forward pass, padding included
    seed           of the three random directions of each layer
    threads        CPU threads; part of the configuration because sums depend on it
    """

    positive: Annotated[str, not_empty("set positive=FILE")] = ""
    negative: Annotated[str, not_empty("set negative=FILE")] = ""
    method: Literal["means", "probe"] = "means"
    layers: (
        Annotated[
            tuple[Natural, ...], not_empty("leave it out for all"), distinct("names a layer twice")
        ]
        | None
    ) = None
    strengths: Annotated[
        tuple[Positive, ...], not_empty("name a strength"), distinct("names a strength twice")
    ] = (0.25, 0.5, 0.7, 1.0, 1.4)
    kl: Positive = 0.3
    tokens: Annotated[int, at_least(4)] = 8192
    batch_tokens: AtLeastOne = 4096
    seed: Seed = 0
    threads: Threads = 2
