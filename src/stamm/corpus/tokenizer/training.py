"""Training of a byte-level BPE tokenizer, with the same result on every machine."""

from __future__ import annotations

import json
from collections.abc import Iterable

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from stamm.corpus.special_tokens import RESERVED_TOKENS
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.tokenizer import SPLIT_PATTERN, finalize_description

# The trainer's time is quadratic in the length of a word, so longer words are split for training:
# with a million letters in one word it did not end within two minutes.
_LONGEST_WORD = 256


def train_tokenizer_on(config: TokenizerConfig, texts: Iterable[str]) -> str:
    """Train a BPE tokenizer on `texts`; return its tokenizer.json.

    Depends on the texts alone: neither their order nor threads nor hash seeds change it.
    """
    tokenizer = set_pre_tokenizer(tokenizers.Tokenizer(models.BPE(byte_fallback=False)))
    cut = tokenizer.pre_tokenizer
    pieces = pre_tokenizers.Split(Regex(rf"[\s\S]{{1,{_LONGEST_WORD}}}"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut[0], pieces, cut[1]])
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.rarest_pair,
        # The library's limit is exclusive (measured with tokenizers 0.23.3).
        max_token_length=config.longest_token + 1,
        special_tokens=[AddedToken(name, normalized=False) for name in RESERVED_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = cut
    return finalize_description(json.loads(tokenizer.to_str()))


def set_pre_tokenizer(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Set SPLIT_PATTERN and the byte-level alphabet as pre-tokenizer; return the tokenizer."""
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
