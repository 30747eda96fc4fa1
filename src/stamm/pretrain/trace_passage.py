"""Attribution of a passage: training documents that have a run of its tokens, and its loss without some of them.

The training stream is read once from its mapped files; nothing is indexed or stored. Time follows from the
number of tokens, memory does not: a piece of the stream, and 8 bytes for each place that holds `shortest`
tokens of the passage.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import sha256_file
from stamm.base.schema import read_record, read_record_if_present
from stamm.corpus.dedup.shingles import hash_shingles
from stamm.corpus.packed_dataset import PackedSplit
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.held_out import nats_of_texts
from stamm.evaluate.records import HeldOutFile
from stamm.models.generate import greedy
from stamm.models.loading import OpenModel, open_model
from stamm.pretrain.forget.config import ForgetConfig
from stamm.pretrain.forget.records import FORGET, ForgetFile
from stamm.pretrain.trace_config import TraceConfig
from stamm.pretrain.trace_order import TrainingOrder
from stamm.pretrain.trace_records import CommonRun, LossChange, TracedDocument, TracedPassage
from stamm.runs.arms import input_of_arm
from stamm.runs.records import ManifestFile
from stamm.tokenizer.tokenizer import Tokenizer

LIMITS = (
    "a run in common does not show that the model learned the passage from this document: others may say the same"
    " in other words",
    "not found: paraphrases, translations, other spellings, and text that the corpus changed (such as personal"
    " data); at both ends of the passage a word may be divided into other tokens than within a text",
)
"""What a trace of a passage cannot tell."""
CHANGE_LIMIT = (
    "the change of the loss is that of all documents of a branch together, in one training; compare it with that"
    " of the held-out text"
)
_PIECE = 2**16
_MOST_TOKENS = 2**14
_MOST_PLACES = 10_000_000


@dataclass(frozen=True)
class Places:
    """Where a stream holds `shortest` tokens of a passage.

    covered   tokens of the passage that are in one of these
    begins, ends   joined to stretches without gaps, rising; int64
    """

    covered: int
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]


@dataclass(frozen=True)
class Overlap:
    """Documents with a run of a passage.

    count     all of them
    longest   those with the longest runs: the numbers of the document's occurrences, and the run
    """

    covered: int
    count: int
    longest: tuple[tuple[tuple[int, ...], CommonRun], ...]


class PassageSearch:
    """A passage and its continuation, as tokens, and the model that continued it."""

    def __init__(
        self,
        arm: Path,
        config: TraceConfig,
        text: str,
        branches: Mapping[str, Path],
        places: dict[tuple[Path, tuple[int, ...]], Places],
    ) -> None:
        """branches   arms of `config.forgotten`
        places     of packed corpora and tokens that were searched for: arms of a run have one corpus

        Raises   ConfigError for a passage of fewer than `shortest` tokens, or too many"""
        self._arm, self._config, self._branches, self._places = arm, config, branches, places
        folder = input_of_arm(arm, "tokenizer")
        self._tokenizer = Tokenizer.load(folder)
        self.tokens = list(self._tokenizer.encode(text))
        self.continuation: list[int] = []
        if len(self.tokens) > _MOST_TOKENS:
            raise ConfigError(
                f"the passage has {len(self.tokens):,} tokens, more than {_MOST_TOKENS:,}",
                fix="Name a part of it",
            )
        if config.new_tokens:
            prompt, context = (
                [*self._model.prefix, *self.tokens],
                self._model.decoder.config.max_context,
            )
            if len(prompt) + config.new_tokens > context:
                raise ConfigError(
                    f"the passage and new_tokens = {config.new_tokens} have {len(prompt) + config.new_tokens} tokens,"
                    f" more than the model's max_context = {context}",
                    fix="Leave new_tokens out, or name the end of the passage alone",
                )
            (self.continuation,) = greedy(self._model.decoder, [prompt], config.new_tokens)
        if len(self.all) < config.shortest:
            raise ConfigError(
                f"the passage has {len(self.all)} tokens, fewer than shortest = {config.shortest}",
                fix=f"Write a longer one, or set shortest={len(self.all)} or less",
            )

    @property
    def all(self) -> list[int]:
        """The tokens of the passage, and of its continuation."""
        return [*self.tokens, *self.continuation]

    @functools.cached_property
    def _model(self) -> OpenModel:
        return open_model(self._arm)

    def overlap(self, order: TrainingOrder) -> Overlap:
        """The documents of the training stream that have a run of the passage."""
        key = order.pack.resolve(), tuple(self.all)
        if key not in self._places:
            self._places[key] = find_places(order.pack, key[1], self._config.shortest)
        places = self._places[key]
        split, passage = PackedSplit.open(order.pack, "train"), _text(np.array(self.all))
        numbers = np.searchsorted(order.starts, places.begins, side="right") - 1
        names, sizes = order.documents["document_id"], places.ends - places.begins
        best: dict[str, tuple[int, int, int]] = {}  # length, first token, place in the passage
        lengths: list[int] = []  # of `best`, rising
        limit = self._config.limit
        for at in np.lexsort((places.begins, -sizes)).tolist():
            if len(lengths) >= limit and lengths[-limit] >= sizes[at]:
                break  # no run is longer than its stretch
            name = names[int(numbers[at])].as_py()
            least = best[name][0] if name in best else self._config.shortest - 1
            begin, end = int(places.begins[at]), int(places.ends[at])
            if end - begin > least and (run := _longest_run(split, begin, end, passage, least)):
                if name in best:
                    del lengths[bisect.bisect_left(lengths, least)]
                best[name] = run
                bisect.insort(lengths, run[0])
        ranked = sorted(best.values(), key=lambda run: (-run[0], run[1]))[:limit]
        return Overlap(
            places.covered,
            len(pc.unique(names.take(pa.array(np.unique(numbers))))),
            tuple(self._common_run(order, *run) for run in ranked),
        )

    def _common_run(
        self, order: TrainingOrder, length: int, begin: int, place: int
    ) -> tuple[tuple[int, ...], CommonRun]:
        number = order.between(begin, begin + 1)[0]
        numbers = order.occurrences(number)
        run = CommonRun(
            start=place,
            stop=place + length,
            document_start=begin - int(order.starts[number]),
            text=self._tokenizer.decode(self.all[place : place + length]),
            occurrences=len(numbers),
        )
        return numbers, run

    def traced(self, covered: int | None, documents: Sequence[TracedDocument]) -> TracedPassage:
        """The record of the passage, with its loss where that is asked for.

        Raises   ConfigError for a branch that is not one of this arm
        """
        config = self._config
        nats = self._nats(self._model) if config.loss or config.forgotten else None
        return TracedPassage(
            tokens=len(self.tokens),
            continued=len(self.continuation),
            continuation=self._tokenizer.decode(self.continuation),
            shortest=config.shortest,
            covered=covered,
            nats=nats,
            changes=tuple(
                self._change(branch, folder, nats or 0.0, documents)
                for branch, folder in self._branches.items()
            ),
        )

    def _nats(self, model: OpenModel) -> float:
        ids = [*model.prefix, *self.tokens]
        return nats_of_texts(EvaluateConfig(), model.decoder, [ids], NoProgress())[0]

    def _change(
        self, branch: str, arm: Path, before: float, documents: Iterable[TracedDocument]
    ) -> LossChange:
        order = TrainingOrder(arm)
        if not isinstance(order.config, ForgetConfig) or not _branches_from(arm, self._arm):
            raise ConfigError(
                f"forgotten = {branch} is not a run that forgot documents of {self._arm}",
                fix="Name the folder of `stamm run pretrain.forget run=…`",
            )
        record = read_record(ForgetFile, input_of_arm(arm, "forget") / FORGET)
        files = (folder / "evaluate" / "held_out.json" for folder in (self._arm, arm))
        held_out = [read_record_if_present(HeldOutFile, file) for file in files]
        losses = [file.loss_nats for file in held_out if file is not None]
        return LossChange(
            branch=branch,
            rule=record.rule,
            exact=record.is_exact,
            documents=record.documents,
            before=before / len(self.tokens),
            after=self._nats(open_model(arm)) / len(self.tokens),
            overlapping=tuple(d.document_id for d in documents if order.forgets(d.start)),
            held_out=losses[1] - losses[0] if len(losses) == 2 else None,
        )


def find_places(pack: Path, tokens: tuple[int, ...], shortest: int) -> Places:
    """Where the training stream of a packed corpus holds any `shortest` consecutive ones of some tokens.

    Raises   DataError when it does in more than ten million places
    Checked  tests/unit/pretrain/test_trace_passage.py
    """
    split = PackedSplit.open(pack, "train")
    grams = hash_shingles(np.array(tokens, np.uint64), shortest)
    keys, first = np.unique(grams, return_inverse=True)
    shift = np.uint64(64 - 20)
    likely = np.zeros(2**20, np.bool_)
    likely[(keys >> shift).astype(np.int64)] = True
    seen = np.zeros(len(keys), np.bool_)
    parts: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    count = 0
    for start in range(0, split.num_tokens - shortest + 1, _PIECE):
        piece = split.read(start, min(start + _PIECE + shortest - 1, split.num_tokens))
        hashes = hash_shingles(piece.astype(np.uint64), shortest)
        at = np.flatnonzero(likely[(hashes >> shift).astype(np.int64)])
        which = np.minimum(np.searchsorted(keys, hashes[at]), len(keys) - 1)
        is_there = keys[which] == hashes[at]
        if is_there.any():
            seen[which[is_there]] = True
            parts.append(start + at[is_there])
            count += len(parts[-1])
        if count > _MOST_PLACES:
            raise DataError(
                f"more than {_MOST_PLACES:,} places hold {shortest} tokens of the passage",
                fix=f"Set shortest={2 * shortest}, or leave its commonest part out",
            )
    positions = np.concatenate(parts)
    gaps = np.flatnonzero(np.diff(positions) != 1)
    begins = positions[np.concatenate(([0], gaps + 1))] if count else positions
    ends = positions[np.concatenate((gaps, [-1]))] + shortest if count else positions
    covered = np.zeros(len(tokens), np.bool_)
    for index in np.flatnonzero(seen[first]).tolist():
        covered[index : index + shortest] = True
    return Places(int(covered.sum()), begins, ends)


def _longest_run(
    split: PackedSplit, begin: int, end: int, passage: str, least: int
) -> tuple[int, int, int] | None:
    """The longest run of tokens begin .. end - 1 in the passage: its length, first token, and place in the passage.

    least   None when no run is longer
    """
    longest, kept = (least, begin, ""), ""
    for stop in range(begin, end, _PIECE):
        piece = split.read(stop, min(stop + _PIECE, end))
        kept += _text(piece)
        base, at = stop + len(piece) - len(kept), longest[0] + 1
        while at <= len(kept) and longest[0] < len(passage):
            # Of the runs that end here, is one longer than the longest so far?
            run = kept[at - longest[0] - 1 : at]
            if run in passage:
                longest = len(run), base + at - len(run), run
            at += 1
        kept = kept[max(0, len(kept) - longest[0]) :]
    length, first, run = longest
    return (length, first, passage.find(run)) if run else None


def _text(tokens: NDArray[Any]) -> str:
    """Tokens as characters, in which `in` finds a run."""
    return tokens.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _branches_from(branch: Path, arm: Path) -> bool:
    source = read_record(ManifestFile, branch / "manifest.json").inputs.get("source")
    if source is None:
        return False
    if source.sha256 is not None:
        return source.sha256 == sha256_file(arm / "config.json")
    return (branch / source.path).resolve() == (arm / "config.json").resolve()
