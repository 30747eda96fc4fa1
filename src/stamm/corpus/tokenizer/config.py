"""Configuration of tokenizer training and of tokenization."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate
from stamm.tokenizer.special_tokens import RESERVED_TOKENS


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """A byte-level BPE vocabulary trained on the corpus.

    vocab_size     all ids: reserved tokens, 256 bytes and merges
    rarest_pair    a pair seen less often is never merged
    longest_token  in bytes; keeps a ruler of dashes from becoming one token
    sample_bytes   a larger corpus is sampled to about this size; 10^8 takes 1.3 to 2 GiB to train on
    temperature    languages share the sample by bytes^temperature: 1 as the corpus has them, 0
                   alike; a language that has less gives all it has, and the others share the rest
    """

    vocab_size: int = 6144
    rarest_pair: int = 2
    longest_token: int = 48
    sample_bytes: int = 100_000_000
    temperature: float = 0.5

    def __post_init__(self) -> None:
        floor = len(RESERVED_TOKENS) + 256
        validate(
            self,
            (
                "vocab_size",
                floor < self.vocab_size <= 2**31 - 1,
                f"must exceed {floor}: {len(RESERVED_TOKENS)} reserved tokens and 256 bytes",
            ),
            ("rarest_pair", self.rarest_pair >= 1, "must be at least 1"),
            ("longest_token", self.longest_token >= 2, "must be at least 2 bytes"),
            ("sample_bytes", self.sample_bytes >= 1, "must be at least 1"),
            ("temperature", 0.0 <= self.temperature <= 1.0, "must lie in [0, 1]"),
        )


@dataclass(frozen=True, kw_only=True)
class TekkenConfig:
    """The vocabulary of Mistral-Nemo with Apertus' reserved tokens; needs mistral-common.

    vocab_size    all ids: 1,000 reserved, then words in the order of their ranks
    latex         read \\begin{, \\end{, \\text{ and \\boxed{ as one token each, as Apertus does
    sample_bytes  what is measured of a larger corpus
    temperature   languages share that by bytes^temperature
    """

    vocab_size: int = 131_072
    latex: bool = True
    sample_bytes: int = 100_000_000
    temperature: float = 0.5

    def __post_init__(self) -> None:
        validate(
            self,
            ("vocab_size", 1256 < self.vocab_size <= 151_000, "must lie in 1257 .. 151000"),
            ("sample_bytes", self.sample_bytes >= 1, "must be at least 1"),
            ("temperature", 0.0 <= self.temperature <= 1.0, "must lie in [0, 1]"),
        )


@dataclass(frozen=True, kw_only=True)
class TokenizeConfig:
    """Documents to token ids. It has no settings: the tokenizer decides."""
