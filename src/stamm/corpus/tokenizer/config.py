"""Configuration of tokenizer training and of tokenization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stamm.base.bounds import AtLeastOne, Share, at_least, within
from stamm.base.config import Bounded
from stamm.tokenizer.special_tokens import RESERVED_TOKENS

_FIXED = len(RESERVED_TOKENS) + 256


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Bounded):
    """A byte-level BPE vocabulary trained on the corpus.

    vocab_size     all ids: reserved tokens, 256 bytes and merges
    rarest_pair    a pair seen less often is never merged
    longest_token  in bytes; keeps a ruler of dashes from becoming one token
    sample_bytes   a larger corpus is sampled to about this size; 10^8 takes 1.3 to 2 GiB to train on
    temperature    languages share the sample by bytes^temperature: 1 as the corpus has them, 0
                   alike; a language that has less gives all it has, and the others share the rest
    """

    vocab_size: Annotated[
        int,
        within(f"({_FIXED}, 2^31)", f": {len(RESERVED_TOKENS)} tokens are reserved, and 256 bytes"),
    ] = 6144
    rarest_pair: AtLeastOne = 2
    longest_token: Annotated[int, at_least(2, " bytes")] = 48
    sample_bytes: AtLeastOne = 100_000_000
    temperature: Share = 0.5


@dataclass(frozen=True, kw_only=True)
class TekkenConfig(Bounded):
    """The vocabulary of Mistral-Nemo with Apertus' reserved tokens; needs mistral-common.

    vocab_size    all ids: 1,000 reserved, then words in the order of their ranks
    latex         read \\begin{, \\end{, \\text{ and \\boxed{ as one token each, as Apertus does
    sample_bytes  what is measured of a larger corpus
    temperature   languages share that by bytes^temperature
    """

    vocab_size: Annotated[int, within("[1257, 151000]")] = 131_072
    latex: bool = True
    sample_bytes: AtLeastOne = 100_000_000
    temperature: Share = 0.5


@dataclass(frozen=True, kw_only=True)
class TokenizeConfig:
    """Documents to token ids. It has no settings: the tokenizer decides."""
