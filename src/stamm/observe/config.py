"""Configuration of `stamm observe`. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from stamm.base.bounds import AtLeastOne, Threads, at_least
from stamm.base.config import Bounded


@dataclass(frozen=True, kw_only=True)
class ObserveConfig(Bounded):
    """Text that the layers of a model are observed on.

    text           file of texts: JSONL with "text" (plain, .gz or .zst), or .txt, one text; None: the
                   held-out split of the run's packed corpus. Its results are written to a separate
                   file
    tokens         tokens observed at most: the first context of each document, then the second ones, and
                   so on; held-out documents in the order of the hash of their identifier, texts of a
                   file in its order. None: all of them
    checkpoints    "all": every checkpoint of a run; "last": its model
    probe          "layers": their statistics; "plasticity": the loss on fixed random targets after 200
                   steps of a new optimizer, on copies
    batch_tokens   tokens of one forward and backward pass, padding included; results depend on it only
                   in the last digits
    threads        CPU threads; part of the configuration because sums depend on it
    """

    text: str | None = None
    tokens: Annotated[int, at_least(2)] | None = 32_768
    checkpoints: Literal["last", "all"] = "last"
    probe: Literal["layers", "plasticity"] = "layers"
    batch_tokens: AtLeastOne = 4096
    threads: Threads = 2
