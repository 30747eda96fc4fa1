"""Held-out texts in an exported model: token ids, bits per byte and greedy continuations.

Letters: T tokens, V vocabulary.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.special_tokens import BEGIN_ID, END_ID
from stamm.corpus.tokenizer.imported import ImportedTokenizer
from stamm.corpus.tokenizer.tokenizer import Tokenizer
from stamm.export.parity import Logits
from stamm.export.target import LoadedExport
from stamm.models.decoder import Decoder
from stamm.models.generate import greedy
from stamm.runs.schemas.export import BitsAgreement, GreedyAgreement, TokenAgreement

LONGEST, SHORTEST = 1024, 64
"""Tokens of a document that are compared at most, and however many languages there are."""


@dataclass(frozen=True, kw_only=True)
class HeldOutText:
    """The first tokens of a held-out document, <s> included, and their text without <s> and </s>."""

    language: str
    tokens: list[int]
    text: str


def held_out_texts(
    split: PackedSplit | None, tokenizer: Tokenizer | ImportedTokenizer, most_tokens: int
) -> list[HeldOutText]:
    """The first document of every language, then the second, until `most_tokens` tokens are read.

    Edge     many languages divide the tokens evenly: at least 64 of each language, whatever `most_tokens`
    """
    if split is None:
        return []
    by_language: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in split.documents().select(["language", "start", "stop"]).to_pylist():
        by_language[str(row["language"])].append((row["start"], row["stop"]))
    found: list[HeldOutText] = []
    longest = min(LONGEST, max(SHORTEST, most_tokens // max(len(by_language), 1)))
    for number, turn in enumerate(itertools.zip_longest(*by_language.values())):
        for language, place in zip(by_language, turn, strict=True):
            enough = number > 0 and sum(len(each.tokens) for each in found) >= most_tokens
            if place is None or enough:
                continue
            tokens = split.read(place[0], min(place[1], place[0] + longest)).tolist()
            text = tokenizer.decode([token for token in tokens if token not in (BEGIN_ID, END_ID)])
            found.append(HeldOutText(language=language, tokens=tokens, text=text))
    return found


def token_agreement(
    texts: Sequence[HeldOutText], tokenizer: Tokenizer | ImportedTokenizer, loaded: LoadedExport
) -> list[TokenAgreement]:
    """Ids by language, of the exported tokenizer and the original; none if the target has none."""
    if loaded.encode is None:
        return []
    counts: dict[str, tuple[int, int, int]] = {}
    first = len(loaded.encode(""))  # tokens put before every text
    for each in texts:
        ours, theirs = tokenizer.encode(each.text), loaded.encode(each.text)[first:]
        new = (1, len(ours), different_tokens(ours, theirs))
        before = counts.get(each.language, (0, 0, 0))
        counts[each.language] = (before[0] + new[0], before[1] + new[1], before[2] + new[2])
    return [
        TokenAgreement(language=name, texts=texts, tokens=tokens, differing=differing)
        for name, (texts, tokens, differing) in counts.items()
    ]


def different_tokens(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """The number of tokens of `ours` outside the runs that both have, in the same order."""
    if list(ours) == list(theirs):
        return 0
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    return len(ours) - sum(block.size for block in matcher.get_matching_blocks())


@torch.no_grad()
def bits_agreement(
    texts: Sequence[HeldOutText], decoder: Decoder, exported: Logits
) -> list[BitsAgreement]:
    """Bits per byte of both models: of all texts under the language "", then of each language.

    Edge     texts beyond the model's context are read in windows of its length that share one token,
             so that each token but the first of a text is predicted once
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for each in texts:
        if len(each.tokens) < 2:
            continue
        windows = _windows(each.tokens, decoder.config.max_context)
        new = (
            float(len(each.tokens) - 1),
            float(len(each.text.encode())),
            sum(_bits(decoder, window) for window in windows),
            sum(_bits(exported, window) for window in windows),
        )
        for name in ("", each.language):
            sums[name] = [before + value for before, value in zip(sums[name], new, strict=True)]
    return [
        BitsAgreement(
            language=name,
            tokens=int(tokens),
            bytes=int(size),
            original=ours / max(size, 1.0),
            exported=theirs / max(size, 1.0),
        )
        for name, (tokens, size, ours, theirs) in sums.items()
    ]


def greedy_agreement(
    prompts: Sequence[Sequence[int]], decoder: Decoder, loaded: LoadedExport, new_tokens: int
) -> GreedyAgreement | None:
    """Greedy continuations of both models, up to where the exported one ends; None without any.

    Edge     two logits within rounding of one another may swap: reported, and not a gate
    """
    if loaded.generate is None or not prompts:
        return None
    compared = equal = 0
    for prompt, ours in zip(prompts, greedy(decoder, prompts, new_tokens), strict=True):
        theirs = loaded.generate(prompt, new_tokens)
        pairs = [a == b for a, b in zip(ours, theirs, strict=False)]
        compared += len(pairs)
        equal += len(list(itertools.takewhile(bool, pairs)))
    return GreedyAgreement(prompts=len(prompts), tokens=compared, equal=equal)


def _windows(tokens: Sequence[int], length: int) -> list[torch.Tensor]:
    starts = range(0, len(tokens) - 1, max(length - 1, 1))
    return [torch.tensor(tokens[start : start + length]) for start in starts]


def _bits(logits: Logits, tokens_T: torch.Tensor) -> float:
    logits_TV = logits(tokens_T[None])[0, :-1]
    nats = F.cross_entropy(logits_TV, tokens_T[1:], reduction="none")
    return float(nats.double().sum()) / math.log(2)
