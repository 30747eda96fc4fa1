"""The training order of a pretrained arm: documents by step and steps by document, computed and never stored.

The order of documents is pack/order-train.parquet, the order of sequences a shuffle that is computed in
both directions, and the steps follow from the configuration. So an answer takes the time to read the table
of documents, whatever the length of the run.

Of a run that forgot documents, the steps behind the checkpoint that it resumed from read other sequences
(`forget.sequences`).

Reads    config.json and metrics.jsonl of the arm; manifest.json and order-train.parquet of its packed corpus;
         forget.json and documents.parquet where it forgot documents
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stamm.base.config import from_plain
from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.files import read_json, sha256_file
from stamm.base.receipts import Stamp, is_present, stamp_of
from stamm.base.schema import read_record, read_record_if_present
from stamm.corpus.deletions import Deletions, Request, read_deletion
from stamm.corpus.ledger import TRAIN
from stamm.corpus.records import PackManifest
from stamm.corpus.shuffle import TokenStream, WindowOrder
from stamm.corpus.tables import read_table
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.dataset import SequenceSampler
from stamm.pretrain.forget.config import ForgetConfig
from stamm.pretrain.forget.records import DOCUMENTS, FORGET, ForgetFile
from stamm.pretrain.forget.sequences import (
    RemainingSequences,
    TokenSpans,
    read_spans,
    replacements,
)
from stamm.pretrain.records import TrainingSummary
from stamm.pretrain.trace_records import PRETRAIN
from stamm.runs.arms import input_of_arm
from stamm.runs.manifest import MANIFEST_FIX
from stamm.runs.metrics import read_metrics
from stamm.runs.records import ConfigFile, ManifestFile

ORDER = "order-train.parquet"
COLUMNS = [
    "tokens",
    "document_id",
    "url",
    "source",
    "licence",
    "language",
    "probe_id",
    "occurrence",
]
LOSS = "train/loss_nats"


def kind_of(arm: Path) -> str:
    """Kind of the job that trained the arm in a folder; "" for any other folder.

    Raises   DataError for a config.json that is damaged, or that a run wrote and that is missing
    """
    path = arm / "config.json"
    if not ((arm / "manifest.json").is_file() and is_present(path)):
        return ""
    plain = read_json(path)
    if not isinstance(plain, dict):
        raise DataError(f"{path} holds no object", fix="Restore the file")
    kind = plain.get("kind")
    return kind if isinstance(kind, str) else ""


class TrainingOrder:
    """The documents of each step of an arm.

    documents   the table of COLUMNS: every occurrence of a document in the training stream, in order
    starts      first token of each in the stream
    stages      names of the stages of the stream
    windows     first token of each sequence
    steps       of the configuration; `done` of them are trained
    rule        by which it forgot documents; "" for other runs

    Raises   RunError for an arm that was not pretrained on a packed corpus; DataError for damaged files
    """

    def __init__(self, arm: Path) -> None:
        described = read_record(ConfigFile, arm / "config.json")
        if described.kind != PRETRAIN:
            raise RunError(
                f"{arm} is of kind {described.kind!r}: only pretraining reads a packed corpus",
                fix="Name the arm that it started from",
            )
        forgets = isinstance(described.config, dict) and "rule" in described.config
        kind = ForgetConfig if forgets else PretrainConfig
        self.arm, self.config = arm, from_plain(kind, described.config)
        if self.config.foreign is not None:
            raise RunError(f"{arm} was trained on Megatron files, which do not name documents")
        self.pack = input_of_arm(arm, "pack")
        _check_same_pack(arm, self.pack)
        split = read_record(PackManifest, self.pack / "manifest.json").splits[TRAIN]
        self.documents, self.starts = _documents(self.pack / ORDER)
        if int(self.starts[-1]) != split.tokens:
            raise DataError(
                f"{self.pack / ORDER} has {self.starts[-1]:,} tokens, its manifest declares {split.tokens:,}",
                fix="Restore the packed corpus",
            )
        stops = np.cumsum([0, *(stage.tokens for stage in split.stages)]).tolist()
        if len(stops) < 2 or stops[-1] != split.tokens:
            stops = [0, split.tokens]
        self.stages = [stage.name for stage in split.stages] or [""]
        self._stops = stops
        self.windows = WindowOrder(
            list(itertools.pairwise(stops)), self.config.context, self.config.seed
        )
        total = self.config.total_sequences(self.windows.count)
        self._plan = self.config.batches(total)
        self.steps = self._plan.num_steps
        self.spans: TokenSpans | None = None
        self.rule = self.config.rule if isinstance(self.config, ForgetConfig) else ""
        self.resumed, self._replaced = 0, dict[int, int]()
        if isinstance(self.config, ForgetConfig):
            self._forget(self.config, total)
        summary = read_record_if_present(TrainingSummary, arm / "summary.json")
        self.done = self._last_step() if summary is None else summary.steps

    @functools.cached_property
    def losses(self) -> dict[int, float]:
        """Mean training loss of each recorded step, in nats per token."""
        lines = read_metrics(self.arm / "metrics.jsonl")
        return {line["step"]: float(line[LOSS]) for line in lines if LOSS in line}

    def sequences(self, step: int) -> tuple[int, NDArray[np.int64]]:
        """Of a step, counted from 1: the position of its first sequence, and the first token of each.

        Raises   ConfigError for a step that the run does not have
        """
        if not 1 <= step <= self.steps:
            raise ConfigError(f"step={step} is not one of 1 to {self.steps}")
        span = self._plan.step(step - 1)
        first = self.config.first_sequence + span.first
        starts = self.windows.windows(first, span.size)
        for position in self._replaced.keys() & set(range(first, first + span.size)):
            starts[position - first] = self._start_of(self._replaced[position])
        return first, starts

    def readings(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """(step, position of the sequence, its first token) of all readings of tokens start .. stop - 1, in
        the order of training, up to the last step that was trained."""
        first = self.config.first_sequence
        if not self.done:
            return []
        span = self._plan.step(self.done - 1)
        positions, tokens = self.windows.readings(start, stop, first + span.first + span.size)
        read = [
            (position, token)
            for position, token in zip(positions.tolist(), tokens.tolist(), strict=True)
            if position not in self._replaced
        ]
        for position, other in self._replaced.items():
            token = self._start_of(other)
            if token < stop and start <= token + self.windows.length:
                read.append((position, token))
        matches = []
        for position, token in sorted(read):
            step = self._plan.step_of(position - first) if position >= first else None
            if step is not None and step < self.done and not self.hides(start, step + 1):
                matches.append((step + 1, position, token))
        return matches

    def hides(self, token: int, step: int) -> bool:
        """Whether a step reads another token in the place of this one, since its document is forgotten."""
        return step > self.resumed and self.forgets(token)

    def forgets(self, token: int) -> bool:
        """Whether the run forgot the document of a token."""
        return self.spans is not None and bool(self.spans.contain(token, token + 1)[0])

    def sampler(self, stream: TokenStream, step: int) -> SequenceSampler:
        """The sampler of the sequences of a step."""
        config = self.config
        given = stream, config.context, config.seed, config.goldfish, config.masks
        if self.spans is None or step <= self.resumed or not isinstance(config, ForgetConfig):
            return SequenceSampler(*given)
        total = config.total_sequences(self.windows.count)
        return RemainingSequences(
            *given, spans=self.spans, rule=config.rule, first=config.first_sequence, total=total
        )

    def between(self, start: int, stop: int) -> range:
        """Numbers of the documents that hold a token of start .. stop - 1."""
        low = int(np.searchsorted(self.starts, start, side="right")) - 1
        return range(low, int(np.searchsorted(self.starts, stop, side="left")))

    def stage_of(self, token: int) -> str:
        """Name of the stage that a token of the stream belongs to."""
        return self.stages[int(np.searchsorted(self._stops, token, side="right")) - 1]

    def named(self, word: str) -> list[int]:
        """Numbers of the documents that a line of a deletion request names: an id, a URL in any spelling, a
        domain, https://host/*.

        Raises   ConfigError for any other text
        """
        return matching(self.documents, word)

    def occurrences(self, number: int) -> tuple[int, ...]:
        """Numbers of all occurrences of a document, given that of one."""
        names = self.documents["document_id"]
        return tuple(np.flatnonzero(pc.equal(names, names[number]).to_numpy()).tolist())

    def row(self, number: int) -> dict[str, Any]:
        """The columns of a document."""
        row: dict[str, Any] = self.documents.slice(number, 1).to_pylist()[0]
        return row

    def _forget(self, config: ForgetConfig, total: int) -> None:
        """Read which sequences are replaced, and from which step on."""
        folder, first = input_of_arm(self.arm, "forget"), config.first_sequence
        if not (folder / DOCUMENTS).is_file():
            raise RunError(
                f"{self.arm} forgot documents, and {folder} does not hold which",
                fix="Restore it; a release of an older version does not list them: trace the run itself",
            )
        self.spans = read_spans(folder)
        self.resumed = read_record(ForgetFile, folder / FORGET).checkpoint
        if config.rule == "replace":
            replaced = replacements(self.windows, self.spans, first, total)
            before = self._plan.step(self.resumed - 1) if self.resumed else None
            stop = first + before.first + before.size if before else first
            self._replaced = {at: other for at, other in replaced.items() if at >= stop}

    def _start_of(self, position: int) -> int:
        return int(self.windows.windows(position, 1)[0])

    def _last_step(self) -> int:
        lines = read_metrics(self.arm / "metrics.jsonl")
        return min(int(lines[-1]["step"]), self.steps) if lines else 0


def matching(table: pa.Table, word: str) -> list[int]:
    """Rows of a table with columns document_id and url that a line of a deletion request names.

    Raises   ConfigError for any other text
    """
    try:
        request = read_deletion(word)
    except ValueError:
        raise ConfigError(
            f"document={word[:80]!r} is not a document",
            fix="Write a document_id, a URL, a domain such as example.org, or https://example.org/*",
        ) from None
    deletions = Deletions([request])
    numbers = _candidates(table, request, word).tolist()
    rows = table.select(["url", "document_id"]).take(pa.array(numbers, pa.int64())).to_pylist()
    return [
        number
        for number, row in zip(numbers, rows, strict=True)
        if deletions.keys(row["url"] or "", row["document_id"])
    ]


def _candidates(table: pa.Table, request: Request, word: str) -> NDArray[np.int64]:
    """Rows that may match: comparing spellings of URLs takes 16 us a row."""
    if request.kind == "identifier":
        matches = pc.equal(table["document_id"], request.key)
    elif not request.host:
        return np.arange(table.num_rows)
    else:
        urls = pc.fill_null(table["url"], "")
        # Another spelling of a host has capitals, other letters, or is percent-encoded.
        matches = pc.or_(
            pc.match_substring(urls, request.host, ignore_case=True),
            pc.or_(pc.invert(pc.string_is_ascii(urls)), pc.match_substring(urls, "%")),
        )
    return np.flatnonzero(matches.to_numpy())


def _documents(path: Path) -> tuple[pa.Table, NDArray[np.int64]]:
    """The order of the documents and their first tokens, read once until the file changes."""
    return _parsed(path, stamp_of(path) if path.is_file() else None)


@functools.lru_cache(maxsize=1)
def _parsed(path: Path, _: Stamp | None) -> tuple[pa.Table, NDArray[np.int64]]:
    table = read_table(path, COLUMNS)
    return table, np.concatenate(([0], np.cumsum(table["tokens"].to_numpy()))).astype(np.int64)


def _check_same_pack(arm: Path, pack: Path) -> None:
    """Raise DataError when the packed corpus is not the one that the arm recorded."""
    manifest = read_record_if_present(ManifestFile, arm / "manifest.json", MANIFEST_FIX)
    packed = manifest.inputs.get("pack") if manifest else None
    recorded = packed.sha256 if packed else None
    if recorded is not None and recorded != sha256_file(pack / "manifest.json"):
        raise DataError(
            f"{pack} is not the packed corpus that {arm} was trained on",
            fix="Restore it, or name the run that has it",
        )
