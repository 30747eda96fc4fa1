"""Configuration of packing: the data mixture of each stage and the size of token shards."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate
from stamm.corpus.limits import LARGEST_SEED


@dataclass(frozen=True, kw_only=True)
class SourceShare:
    """A source's part of a stage, by weight or by epochs.

    source       pattern for the documents' `source` ("fineweb*"); the first share that fits counts
    language     pattern for their language ("deu_*")
    weight       share of the stage's tokens, relative to the weights of the others
    epochs       how often it is read in this stage (.5: the next half of it); instead of a weight
    most_epochs  a weight by which it would be read more often, with all earlier stages, is an error
    """

    source: str = "*"
    language: str = "*"
    weight: float | None = None
    epochs: float | None = None
    most_epochs: float = 4.0

    def __post_init__(self) -> None:
        one = (self.weight is None) != (self.epochs is None)
        validate(
            self,
            ("weight", one, f"and epochs = {self.epochs}: give one of the two"),
            ("weight", self.weight is None or self.weight > 0, "must be positive"),
            ("epochs", self.epochs is None or self.epochs > 0, "must be positive"),
            ("most_epochs", self.most_epochs > 0, "must be positive"),
        )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stretch of the training stream with a mixture of its own.

    tokens   its length, split among the sources by their weights; None when they have epochs
    """

    name: str
    sources: tuple[SourceShare, ...]
    tokens: int | None = None

    def __post_init__(self) -> None:
        weighted = [share for share in self.sources if share.weight is not None]
        mixed = bool(weighted) and len(weighted) < len(self.sources)
        validate(
            self,
            ("name", self.name.isidentifier(), "must be letters, digits and _"),
            ("sources", bool(self.sources), "is empty"),
            ("sources", not mixed, "gives some sources a weight and others epochs"),
            (
                "tokens",
                (self.tokens is not None) == bool(weighted),
                "must be given when the sources have weights, and only then",
            ),
            ("tokens", self.tokens is None or self.tokens >= 1, "must be at least 1"),
        )


@dataclass(frozen=True, kw_only=True)
class PackConfig:
    """Token shards in a fixed order.

    shard_tokens  a shard is closed by the document that reaches this many tokens
    seed          decides the order of documents
    stages        mixtures one after another; none: every document once
    planted_in    the stage that holds what is planted; "" for the first
    memory_gib    what sorting may take before it uses the disk
    """

    shard_tokens: int = 100_000_000
    seed: int = 28
    stages: tuple[Stage, ...] = ()
    planted_in: str = ""
    memory_gib: float = 2.0

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        validate(
            self,
            ("shard_tokens", self.shard_tokens >= 1, "must be at least 1"),
            ("seed", 0 <= self.seed <= LARGEST_SEED, "must lie in [0, 2^63)"),
            ("stages", len(set(names)) == len(names), "has two stages of one name"),
            (
                "planted_in",
                self.planted_in in ("", *names),
                f"names no stage; there are {', '.join(names) or 'none'}",
            ),
            ("memory_gib", self.memory_gib >= 0.125, "must be at least 0.125"),
        )
