"""The vocabulary: byte-level BPE, trained on the corpus, the same on every machine.

A document is `<s> text </s>`. What a document says is never a control token: "</s>" in a text is
encoded as four ordinary characters. Only the markers that took the place of personal data are read
as their one token, wherever they stand.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from stamm.base.errors import DataError
from stamm.base.files import sha256_bytes, write_json, write_text
from stamm.corpus.config import TokenizerConfig
from stamm.corpus.held_out import HELD_OUT, TRAIN
from stamm.corpus.special_tokens import BEGIN_ID, END_ID, PII_MARKERS, RESERVED_TOKENS
from stamm.corpus.tables import Row, read_rows
from stamm.runs.job import Workspace

FILE = "tokenizer.json"
SCHEMA = 1

# Words split where capitals follow small letters, digits one by one, blanks lead their word.
# Source: the pattern of Mistral's tekken, which Apertus keeps (swiss-ai/
# apertus-tokenizer-development, apertus_tokenizer_design.md, "Apertus Pretokenization").
SPLIT_PATTERN = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_BATCH = 256


class Tokenizer:
    """Texts to ids and back. `decode(encode(text)) == text` for every text.

    Checked  tests/unit/corpus/test_tokenizer.py
    """

    def __init__(self, description: str) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(description)
        except Exception as error:  # the library raises nothing narrower
            raise DataError(
                f"not a tokenizer: {error}", fix="Run the tokenizer step again"
            ) from None
        for position, name in enumerate(RESERVED_TOKENS):
            if self._tokenizer.token_to_id(name) != position:
                raise DataError(
                    f"the tokenizer has {name} at {self._tokenizer.token_to_id(name)}, "
                    f"not at {position}",
                    fix="Use a tokenizer trained by stamm",
                )
        # Control tokens are then not looked for in texts; the markers, which are added tokens
        # but no control tokens, are.
        self._tokenizer.encode_special_tokens = True
        self.sha256 = sha256_bytes(description.encode())

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """The tokenizer in a tokenizer.json, or in the folder that holds one.

        Raises   DataError when it is missing or not what `train_tokenizer` writes.
        """
        file = path / FILE if path.is_dir() else path
        try:
            return cls(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{file} cannot be read: {error}", fix="Run the tokenizer step"
            ) from None

    @property
    def size(self) -> int:
        """How many ids there are."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without <s> and </s>."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_document(self, text: str) -> list[int]:
        """The ids of a document: <s>, its text, </s>."""
        return [BEGIN_ID, *self.encode(text), END_ID]

    def encode_rows(self, rows: Iterable[Row]) -> Iterator[tuple[Row, list[int]]]:
        """Each row with `encode_document` of its "text", in order, many at a time."""
        remaining = iter(rows)
        while batch := list(itertools.islice(remaining, _BATCH)):
            encodings = self._tokenizer.encode_batch(
                [row["text"] for row in batch], add_special_tokens=False
            )
            for row, encoding in zip(batch, encodings, strict=True):
                yield row, [BEGIN_ID, *encoding.ids, END_ID]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, reserved tokens spelled out. Broken UTF-8 becomes U+FFFD."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def train_tokenizer_on(config: TokenizerConfig, texts: Iterable[str]) -> str:
    """The tokenizer.json of a vocabulary trained on `texts`.

    Depends on nothing but the texts and their order: neither threads nor hash seeds change it.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.rarest_pair,
        # The library stops one short of what it is given (measured with tokenizers 0.23.3).
        max_token_length=config.longest_token + 1,
        special_tokens=[AddedToken(name, normalized=False) for name in RESERVED_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _finish(tokenizer.to_str())


def train_from_documents(config: TokenizerConfig, documents: Path, workspace: Workspace) -> None:
    """Train on the train split of `documents` and write tokenizer.json and summary.json.

    Probes count once, whatever their repeats: the vocabulary should not remember them.
    Raises   DataError when the split is empty or too poor for the vocabulary asked for.
    """
    workspace.progress.begin("tokenizer", config.vocab_size, "tokens")

    def texts() -> Iterator[str]:
        for row in read_rows(documents, ["text", "split"]):
            if row["split"] == TRAIN:
                yield row["text"]

    description = train_tokenizer_on(config, texts())
    tokenizer = Tokenizer(description)
    if tokenizer.size != config.vocab_size:
        raise DataError(
            f"the corpus gives {tokenizer.size} tokens, fewer than {config.vocab_size}",
            where="tokenizer.vocab_size",
            fix=f"Set tokenizer.vocab_size={tokenizer.size} or less, or add text",
        )
    write_text(workspace.folder / FILE, description)
    write_json(workspace.folder / "summary.json", _summary(tokenizer, documents))
    workspace.progress.end(f"{tokenizer.size} tokens")


def _finish(description: str) -> str:
    """Marks the personal-data tokens as ordinary text, and puts <s> first where asked to."""
    plain: dict[str, Any] = json.loads(description)
    markers = set(PII_MARKERS.values())
    for token in plain["added_tokens"]:
        token["special"] = token["content"] not in markers
    begin = RESERVED_TOKENS[BEGIN_ID]
    first = {"SpecialToken": {"id": begin, "type_id": 0}}
    plain["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            first,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {begin: {"id": begin, "ids": [BEGIN_ID], "tokens": [begin]}},
    }
    return json.dumps(plain, ensure_ascii=False, indent=1) + "\n"


def _summary(tokenizer: Tokenizer, documents: Path) -> dict[str, Any]:
    counts: dict[str, dict[str, list[int]]] = {TRAIN: {}, HELD_OUT: {}}
    rows = read_rows(documents, ["text", "language", "split", "probe_id"])
    ordinary = (row for row in rows if row["split"] in counts and row["probe_id"] is None)
    for row, ids in tokenizer.encode_rows(ordinary):
        entry = counts[row["split"]].setdefault(row["language"], [0, 0, 0])
        for position, value in enumerate((1, len(row["text"].encode()), len(ids) - 2)):
            entry[position] += value
    return {
        "schema": SCHEMA,
        "vocabulary": tokenizer.size,
        "reserved": len(RESERVED_TOKENS),
        "sha256": tokenizer.sha256,
        **{split: _rates(languages) for split, languages in counts.items()},
    }


def _rates(languages: dict[str, list[int]]) -> dict[str, Any]:
    total = [sum(column) for column in zip(*languages.values(), strict=True)] or [0, 0, 0]
    ranked = sorted(languages.items(), key=lambda item: (-item[1][1], item[0]))
    return {**_rate(total), "languages": {name: _rate(counts) for name, counts in ranked}}


def _rate(counts: list[int]) -> dict[str, Any]:
    documents, size, tokens = counts
    return {
        "documents": documents,
        "bytes": size,
        "tokens": tokens,
        "bytes_per_token": round(size / tokens, 4) if tokens else None,
    }
