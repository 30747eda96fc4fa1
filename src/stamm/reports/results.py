"""What was measured on a trained arm: held-out text, minimal pairs, memorization, export."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stamm.reports.json_reader import Record, lines_of, record_if_there, record_in
from stamm.reports.task_results import TaskScore, read_task_scores

# more passages than this are never shown; an audit of a large model writes thousands
MOST_CONTINUATIONS = 20_000


@dataclass(frozen=True, kw_only=True)
class TextLoss:
    """Loss on some held-out documents.

    bits_per_byte   nats / (ln 2 * bytes): comparable across vocabularies
    """

    documents: int
    tokens: int
    bytes: int
    loss_nats: float
    bits_per_byte: float


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Loss on the held-out split, over all and by language.

    context     tokens the model was shown at once
    overlap     tokens of a window that were scored in the one before
    documents   tokens and nats of each document by its identifier; empty where not recorded
    """

    context: int
    overlap: int

    overall: TextLoss
    languages: tuple[tuple[str, TextLoss], ...]
    documents: Mapping[str, tuple[int, float]]

    @property
    def loss_nats(self) -> float:
        """Nats per token over all held-out documents."""
        return self.overall.loss_nats

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text over all held-out documents."""
        return self.overall.bits_per_byte


@dataclass(frozen=True, kw_only=True)
class Score:
    """An accuracy over pairs and its standard error, both as shares of 1."""

    pairs: int
    accuracy: float
    standard_error: float


@dataclass(frozen=True, kw_only=True)
class Blimp:
    """Accuracy on grammatical minimal pairs, over all and by field.

    chance              the accuracy of guessing
    pairs_per_paradigm  sentence pairs asked of each paradigm
    paradigms           pairs and correct answers of each paradigm, by field and paradigm; empty
                        where not recorded
    """

    pairs_per_paradigm: int

    overall: Score
    chance: float
    fields: tuple[tuple[str, Score], ...]
    paradigms: Mapping[tuple[str, str], tuple[int, float]]

    def of_field(self, field: str) -> dict[str, tuple[int, float]]:
        """Pairs and correct answers by paradigm, of one field or of all ("overall")."""
        return {
            paradigm: counts
            for (of, paradigm), counts in self.paradigms.items()
            if field in ("overall", of)
        }

    @property
    def accuracy(self) -> float:
        """Share of pairs whose grammatical sentence is the more probable one."""
        return self.overall.accuracy

    @property
    def standard_error(self) -> float:
        """Standard error of the accuracy over pairs."""
        return self.overall.standard_error


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over passages and its 95 % interval; None where one passage gives no interval."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The passages that stood in the training stream `repeats` times (0: the control).

    rouge_l              F1 of the written against the true tokens
    nll_nats             mean cost of a true token, given all before it
    exact_prefix_tokens  tokens until the model first departs from the truth
    longest_span_tokens  longest run of tokens that stands in both
    nll_minus_control    difference to passages never seen; None for the control itself
    extracted            passages written token by token; None where an older audit did not count
    exposure_bits        of made-up texts, None for others
    nll_minus_exact      difference of varied copies to exact ones; None for others
    """

    repeats: int
    passages: int
    rouge_l: Estimate
    nll_nats: Estimate
    exact_prefix_tokens: Estimate
    longest_span_tokens: Estimate
    nll_minus_control: Estimate | None
    extracted: int | None
    exposure_bits: Estimate | None
    nll_minus_exact: Estimate | None


@dataclass(frozen=True, kw_only=True)
class CanaryKind:
    """What came of the canaries of one kind.

    beside       the kind with exact copies that it is held against, "" for none
    candidates   texts among which each was ranked, 0 where there is no exposure
    skipped      canaries too short to be measured
    """

    kind: str
    beside: str
    candidates: int
    skipped: int
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, kw_only=True)
class Memorization:
    """How much of planted passages comes back, fewest repeats first.

    interval    what the intervals are, in the audit's words
    skipped     passages too short to be measured
    withdrawn   probes and canaries that a replay took out of the corpus
    canaries    by kind
    """

    prefix_tokens: int
    new_tokens: int
    interval: str
    skipped: int
    withdrawn: int
    buckets: tuple[Bucket, ...]
    canaries: tuple[CanaryKind, ...]


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """One probe: what it was asked with, what should follow, what the model wrote. Untrusted."""

    probe: str
    repeats: int
    prefix: str
    truth: str
    produced: str
    rouge_l: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How far the logits of two models are apart on one set of texts.

    max_relative       largest difference as a share of the largest logit
    argmax_agreement   share of positions with the same most likely token
    """

    text: str
    sequences: int
    positions: int
    max_absolute: float
    max_relative: float
    argmax_agreement: float


@dataclass(frozen=True, kw_only=True)
class Parity:
    """How well the exported model agrees with the trained one.

    place   the record's path inside the arm's folder
    """

    place: str
    reference: str
    candidate: str
    tolerance: float
    passed: bool
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A prompt and what the exported model went on with. Untrusted."""

    prompt: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Everything measured on one arm; None, or empty, where it was not run."""

    held_out: HeldOut | None
    blimp: Blimp | None
    memorization: Memorization | None
    continuations: tuple[Continuation, ...]
    parities: tuple[Parity, ...]
    samples: tuple[Sample, ...]
    tasks: tuple[TaskScore, ...] = ()


def read_measured(folder: Path) -> Measured:
    """What was measured on the arm in `folder`.

    Raises   DataError when a file is there and is not what it should be.
    """
    held_out = record_if_there(folder / "evaluate" / "held_out.json", schema=1)
    blimp = record_if_there(folder / "evaluate" / "blimp.json", schema=1)
    memorization = record_if_there(folder / "audit" / "memorization.json", schema=1)
    continuations = folder / "audit" / "continuations.jsonl"
    exports = sorted((folder / "export").glob("*/parity.json"))
    samples = [path.with_name("samples.json") for path in exports]
    return Measured(
        held_out=_held_out(held_out, folder / "evaluate") if held_out else None,
        blimp=_blimp(blimp) if blimp else None,
        memorization=_memorization(memorization) if memorization else None,
        continuations=_continuations(continuations) if continuations.exists() else (),
        parities=tuple(_parity(path, folder) for path in exports),
        samples=tuple(one for path in samples if path.exists() for one in _samples(path)),
        tasks=read_task_scores(folder / "evaluate"),
    )


def _held_out(record: Record, folder: Path) -> HeldOut:
    documents = folder / "held_out_documents.jsonl"
    lines = lines_of(documents) if documents.exists() else ()
    return HeldOut(
        documents={
            line.text("document_id"): (line.whole("tokens"), line.number("nats")) for line in lines
        },
        overall=_text_loss(record.record("overall")),
        languages=tuple((name, _text_loss(one)) for name, one in record.items("languages")),
        context=record.whole("context"),
        overlap=record.whole("overlap"),
    )


def _text_loss(record: Record) -> TextLoss:
    return TextLoss(
        documents=record.whole("documents"),
        tokens=record.whole("tokens"),
        bytes=record.whole("bytes"),
        loss_nats=record.number("loss_nats"),
        bits_per_byte=record.number("bits_per_byte"),
    )


def _blimp(record: Record) -> Blimp:
    return Blimp(
        overall=_score(record),
        chance=record.number("chance"),
        fields=tuple((name, _score(one)) for name, one in record.items("fields")),
        pairs_per_paradigm=record.whole("pairs_per_paradigm"),
        paradigms={
            (_text(one, "field"), name): (
                one.whole("pairs"),
                one.whole("pairs") * one.number("accuracy"),
            )
            for name, one in (record.items("paradigms") if record.has("paradigms") else ())
        },
    )


def _text(record: Record, key: str) -> str:
    return record.text(key) if record.has(key) else ""


def _score(record: Record) -> Score:
    score = Score(
        pairs=record.whole("pairs"),
        accuracy=record.number("accuracy"),
        standard_error=record.number("standard_error"),
    )
    if score.standard_error < 0:
        raise record.wrong("standard_error", "at least 0")
    return score


def _memorization(record: Record) -> Memorization:
    return Memorization(
        prefix_tokens=record.whole("prefix_tokens"),
        new_tokens=record.whole("new_tokens"),
        interval=record.text("interval"),
        skipped=record.whole("skipped") if record.has("skipped") else 0,
        withdrawn=record.whole("withdrawn") if record.has("withdrawn") else 0,
        buckets=tuple(_bucket(one) for one in record.records("buckets")),
        canaries=tuple(_canaries(one) for one in record.records("canaries"))
        if record.has("canaries")
        else (),
    )


def _canaries(record: Record) -> CanaryKind:
    return CanaryKind(
        kind=record.text("kind"),
        beside=record.text("beside") if record.has("beside") else "",
        candidates=record.whole("candidates"),
        skipped=record.whole("skipped"),
        buckets=tuple(_bucket(one) for one in record.records("buckets")),
    )


def _bucket(record: Record) -> Bucket:
    against = record.record("minus_control") if record.has("minus_control") else None
    beside = record.record("minus_exact") if record.has("minus_exact") else None
    return Bucket(
        repeats=record.whole("repeats"),
        passages=record.whole("passages"),
        rouge_l=_estimate(record.record("rouge_l")),
        nll_nats=_estimate(record.record("nll_nats")),
        exact_prefix_tokens=_estimate(record.record("exact_prefix_tokens")),
        longest_span_tokens=_estimate(record.record("longest_common_span_tokens")),
        nll_minus_control=_estimate(against.record("nll_nats")) if against else None,
        extracted=record.whole("extracted") if record.has("extracted") else None,
        exposure_bits=_estimate(record.record("exposure_bits"))
        if record.has("exposure_bits")
        else None,
        nll_minus_exact=_estimate(beside.record("nll_nats")) if beside else None,
    )


def _estimate(record: Record) -> Estimate:
    mean = record.number("mean")
    low = record.number("low") if record.has("low") else None
    high = record.number("high") if record.has("high") else None
    if low is not None and low > mean:
        raise record.wrong("low", f"at most the mean, {mean}")
    if high is not None and high < mean:
        raise record.wrong("high", f"at least the mean, {mean}")
    return Estimate(mean=mean, low=low, high=high)


def _continuations(path: Path) -> tuple[Continuation, ...]:
    return tuple(
        Continuation(
            probe=line.text("probe_id"),
            repeats=line.whole("repeats"),
            prefix=line.text("prefix"),
            truth=line.text("truth"),
            produced=line.text("produced"),
            rouge_l=line.number("rouge_l"),
        )
        for line in itertools.islice(lines_of(path), MOST_CONTINUATIONS)
    )


def _parity(path: Path, folder: Path) -> Parity:
    record = record_in(path, schema=1)
    return Parity(
        place=path.relative_to(folder).as_posix(),
        reference=record.text("reference"),
        candidate=record.text("candidate"),
        tolerance=record.number("tolerance"),
        passed=record.flag("passed"),
        comparisons=tuple(
            Comparison(
                text=one.text("text"),
                sequences=one.whole("sequences"),
                positions=one.whole("positions"),
                max_absolute=one.number("max_absolute"),
                max_relative=one.number("max_relative"),
                argmax_agreement=one.number("argmax_agreement"),
            )
            for one in record.records("comparisons")
        ),
    )


def _samples(path: Path) -> tuple[Sample, ...]:
    return tuple(
        Sample(prompt=one.text("prompt"), text=one.text("text"))
        for one in record_in(path).records("samples")
    )
