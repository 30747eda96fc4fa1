"""Held-out texts in an exported model: token ids, bits per byte and greedy continuations.

Letters: T tokens, V vocabulary.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.base.files import has_ending
from stamm.base.receipts import check_file
from stamm.corpus.documents import UnreadableRecord
from stamm.corpus.inputs import READABLE
from stamm.corpus.limits import ReadLimits
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.readers.open import read_input, read_text
from stamm.corpus.tables import RowGroups
from stamm.export.parity import Logits
from stamm.export.records import BitsAgreement, GreedyAgreement, TokenAgreement
from stamm.export.target import LoadedExport
from stamm.models.decoder import Decoder
from stamm.models.generate import greedy
from stamm.models.hf_chat_format import AnyTokenizer
from stamm.tokenizer.imported import ImportedTokenizer
from stamm.tokenizer.special_tokens import BEGIN_ID, END_ID

LONGEST, SHORTEST = 1024, 64
"""Tokens of a document that are compared at most, and however many languages there are."""
_ROWS = "held_out.parquet"  # of prepared alignment data
_UNDETERMINED = "und"
_ANSWERS = ("chat", "chosen", "rated")


class HeldOutTokens:
    """Held-out documents that are not packed.

    rows         language, start and stop of each
    num_tokens   of all documents
    """

    def __init__(self, documents: Sequence[tuple[str, Sequence[int]]]) -> None:
        ends = list(itertools.accumulate(len(tokens) for _, tokens in documents))
        self._tokens = np.array([id for _, tokens in documents for id in tokens], dtype=np.int64)
        self.num_tokens = len(self._tokens)
        self.rows: list[dict[str, Any]] = [
            {"language": language, "start": end - len(tokens), "stop": end}
            for (language, tokens), end in zip(documents, ends, strict=True)
        ]

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """The tokens from `start` to `stop`, exclusive."""
        return self._tokens[start:stop]


HeldOut = PackedSplit | HeldOutTokens


def held_out_documents(split: HeldOut) -> list[dict[str, Any]]:
    """Language, first token (start) and end (stop) of each document."""
    if isinstance(split, HeldOutTokens):
        return split.rows
    rows: list[dict[str, Any]] = split.documents().select(["language", "start", "stop"]).to_pylist()
    return rows


def held_out_file(path: Path, tokenizer: AnyTokenizer, most_tokens: int) -> HeldOutTokens:
    """The first documents of a file: rows as of a corpus, or plain text in pieces of LONGEST tokens.

    Raises   DataError for a file that cannot be read, or has no text
    """
    begin = tokenizer.prefix_ids() if isinstance(tokenizer, ImportedTokenizer) else [BEGIN_ID]
    if not path.is_file():
        raise DataError(f"{path} is not a file", where="export.held_out", fix="Name a file of text")
    check_file(path)
    documents: list[tuple[str, list[int]]] = []
    enough = max(most_tokens, LONGEST)
    for language, text in _texts(path):
        ids = tokenizer.encode(text)
        pieces = [ids[start : start + LONGEST] for start in range(0, len(ids), LONGEST)]
        documents += [(language, [*begin, *piece]) for piece in pieces if len(piece) > 1]
        if sum(len(tokens) for _, tokens in documents) >= enough:
            break
    if not documents:
        raise DataError(f"{path} has no text", where="export.held_out", fix="Name another file")
    return HeldOutTokens(documents)


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """Language and text of each document of a file."""
    read = read_input if has_ending(path.name, READABLE) else read_text
    for record in read(str(path), path, ReadLimits()):
        if isinstance(record, UnreadableRecord) or record.is_html:
            why = record.detail if isinstance(record, UnreadableRecord) else "it is a page of HTML"
            why = why.partition(": set corpus.fields.")[0]  # which an export does not have
            raise DataError(
                f"{path} cannot be read: {why}",
                where=f"export.held_out, record {record.place.position}",
                fix="Name plain text, or rows whose text is a string in the column text",
            )
        yield record.language or _UNDETERMINED, record.content.decode("utf-8", "replace")


def held_out_rows(folders: Sequence[Path], most_tokens: int) -> HeldOutTokens | None:
    """Conversations that prepared alignment data keeps from training, of the last stage that has some.

    folders   of prepared data, first stage first
    """
    for folder in reversed(folders):
        documents: list[tuple[str, list[int]]] = []
        for group in RowGroups(folder / _ROWS, ["role", "ids"]).read():
            rows = group.to_pylist()
            documents += [(_UNDETERMINED, row["ids"]) for row in rows if row["role"] in _ANSWERS]
            if sum(len(tokens) for _, tokens in documents) >= max(most_tokens, LONGEST):
                break
        if documents:
            return HeldOutTokens(documents)
    return None


def plain_text(ids: Sequence[int], tokenizer: AnyTokenizer) -> str:
    """The text of ids without the control tokens of an imported tokenizer, or <s> and </s> of stamm's."""
    if isinstance(tokenizer, ImportedTokenizer):
        return tokenizer.decode([id for id in ids if tokenizer.control_token(id) is None])
    return tokenizer.decode([id for id in ids if id not in (BEGIN_ID, END_ID)])


@dataclass(frozen=True, kw_only=True)
class HeldOutText:
    """The first tokens of a held-out document, <s> included, and their `plain_text`."""

    language: str
    tokens: list[int]
    text: str


def held_out_texts(
    split: HeldOut | None, tokenizer: AnyTokenizer, most_tokens: int
) -> list[HeldOutText]:
    """The first document of every language, then the second, until `most_tokens` tokens are read.

    Edge     many languages divide the tokens evenly: at least 64 of each language, whatever `most_tokens`
    """
    if split is None:
        return []
    by_language: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in held_out_documents(split):
        by_language[str(row["language"])].append((row["start"], row["stop"]))
    texts: list[HeldOutText] = []
    longest = min(LONGEST, max(SHORTEST, most_tokens // max(len(by_language), 1)))
    for number, turn in enumerate(itertools.zip_longest(*by_language.values())):
        for language, span in zip(by_language, turn, strict=True):
            enough = number > 0 and sum(len(sample.tokens) for sample in texts) >= most_tokens
            if span is None or enough:
                continue
            tokens = split.read(span[0], min(span[1], span[0] + longest)).tolist()
            text = plain_text(tokens, tokenizer)
            texts.append(HeldOutText(language=language, tokens=tokens, text=text))
    return texts


def token_agreement(
    texts: Sequence[HeldOutText], tokenizer: AnyTokenizer, loaded: LoadedExport
) -> list[TokenAgreement]:
    """Ids by language, of the exported tokenizer and the original; none if the target has none."""
    if loaded.encode is None:
        return []
    counts: dict[str, tuple[int, int, int]] = {}
    first = len(loaded.encode(""))  # tokens put before every text
    for sample in texts:
        ours, theirs = tokenizer.encode(sample.text), loaded.encode(sample.text)[first:]
        new = (1, len(ours), different_tokens(ours, theirs))
        before = counts.get(sample.language, (0, 0, 0))
        counts[sample.language] = (before[0] + new[0], before[1] + new[1], before[2] + new[2])
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
    for sample in texts:
        if len(sample.tokens) < 2:
            continue
        windows = _windows(sample.tokens, decoder.config.max_context)
        new = (
            float(len(sample.tokens) - 1),
            float(len(sample.text.encode())),
            sum(_bits(decoder, window) for window in windows),
            sum(_bits(exported, window) for window in windows),
        )
        for name in ("", sample.language):
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
