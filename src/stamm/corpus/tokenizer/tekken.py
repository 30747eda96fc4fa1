"""The tokenizer of Mistral-Nemo, tekken, with Apertus' reserved tokens at their ids.

Ids 0 to 999 are reserved, and bytes and merges follow from 1,000 on, as in both. The first 73 are
those of special_tokens.py; 14 to 17 are Apertus' LaTeX commands if configured. Markers for phone and
card numbers have the ids 12 and 13, which Apertus leaves unnamed. The rest are <SPECIAL_73> to
<SPECIAL_999>.

Source   mistralai/mistral-common (Apache-2.0), data/tekken_240718.json; swiss-ai/
         apertus-tokenizer-development, apertus_tokenizer_design.md, addendum on version 1
"""

from __future__ import annotations

import base64
import importlib.util
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from stamm.base.errors import DataError
from stamm.base.files import sha256_bytes
from stamm.corpus.tokenizer.config import TekkenConfig, TokenizerConfig
from stamm.tokenizer.fast import bytes_word
from stamm.tokenizer.special_tokens import RESERVED_TOKENS
from stamm.tokenizer.tokenizer import LATEX_TOKENS, SPLIT_PATTERN, finalize_description

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


RESERVED = 1000
_FILE = Path("data") / "tekken_240718.json"
_SHA256 = "eccd1665d2e477697c33cb7f0daa6f6dfefc57a0a6bceb66d4be52952f827516"
_INSTALL = "pip install --no-deps mistral-common==1.13.1 (only its data are read)"


def tekken_description(config: TekkenConfig) -> str:
    """The tokenizer.json of tekken; raises DataError without its file in mistral-common."""
    return build_description(config, _words())


def build_description(config: TekkenConfig, words: Sequence[bytes]) -> str:
    """The tokenizer.json of tekken's words in the order of their ranks.

    A rank is also the priority of the merge that makes the word, so the first n words are a complete
    vocabulary.

    Raises   DataError with too few words, or one that is not made of two words before it.
    """
    wanted = config.vocab_size - RESERVED
    if len(words) < wanted:
        raise DataError(
            f"tekken has {len(words)} words, fewer than {wanted}",
            where="tokenizer.vocab_size",
            fix=f"Set tokenizer.vocab_size={len(words) + RESERVED} or less",
        )
    reserved = [
        *RESERVED_TOKENS,
        *(f"<SPECIAL_{i}>" for i in range(len(RESERVED_TOKENS), RESERVED)),
    ]
    if config.latex:
        for position, name in LATEX_TOKENS.items():
            reserved[position] = name
    vocabulary = {name: i for i, name in enumerate(reserved)}
    vocabulary |= {bytes_word(word): RESERVED + i for i, word in enumerate(words[:wanted])}
    merges = [(bytes_word(a), bytes_word(b)) for a, b in derive_merges(words[:wanted])]
    tokenizer = set_pre_tokenizer(tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges)))
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in reserved])
    return finalize_description(json.loads(tokenizer.to_str()))


def derive_merges(words: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """The merge that makes each word except single bytes, from words of lower rank.

    Raises   DataError for a word that is not made of two words before it.
    """
    ranks = {word: rank for rank, word in enumerate(words)}
    merges = []
    for rank, word in enumerate(words):
        if len(word) == 1:
            continue
        parts = _merged([word[i : i + 1] for i in range(len(word))], ranks, rank)
        if len(parts) != 2:
            raise DataError(
                f"word {rank} of tekken, {word!r}, is not made of two words before it",
                fix=_INSTALL,
            )
        merges.append((parts[0], parts[1]))
    return merges


def _merged(parts: list[bytes], ranks: dict[bytes, int], limit: int) -> list[bytes]:
    """The pieces of a word after all merges of rank below `limit`."""
    while len(parts) > 1:
        pair_ranks = [ranks.get(a + b, limit) for a, b in itertools.pairwise(parts)]
        lowest = min(pair_ranks)
        if lowest >= limit:
            break
        at = pair_ranks.index(lowest)
        parts = [*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]]
    return parts


def _words() -> list[bytes]:
    """The words by rank."""
    spec = importlib.util.find_spec("mistral_common")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("tekken needs mistral-common, which is not installed", fix=_INSTALL)
    path = Path(next(iter(spec.submodule_search_locations))) / _FILE
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}", fix=_INSTALL) from None
    if sha256_bytes(raw) != _SHA256:
        raise DataError(
            f"{path} is not the tekken that Apertus uses: its SHA-256 is {sha256_bytes(raw)}",
            fix=_INSTALL,
        )
    return [base64.b64decode(entry["token_bytes"]) for entry in json.loads(raw)["vocab"]]
