"""Results of `stamm trace`, which are printed and not stored."""

from __future__ import annotations

from dataclasses import dataclass

PRETRAIN = "pretrain"
"""Kind of the arms whose readings are known."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One sequence of a step, and its part of one document.

    step        from 1
    position    of the sequence in the order of the run
    start, stop   tokens of the document that it holds, as input or as target, counted in the document
    targets     of them that are predicted
    learned     targets with a loss; None where the token files are not there
    masked      the other targets, counted in the document: the first token of a document, and Goldfish
    loss_nats   mean training loss of the whole step, per token; None where it is not recorded
    """

    step: int
    position: int
    start: int
    stop: int
    targets: int
    learned: int | None = None
    masked: tuple[int, ...] = ()
    loss_nats: float | None = None


@dataclass(frozen=True, kw_only=True)
class CommonRun:
    """The longest run of tokens that a passage, followed by its continuation, and a document have in common.

    start, stop   tokens of the passage; from its number of tokens on, of the continuation
    document_start   the first of them, counted in the document
    text          of the run
    occurrences   of the document in the training stream; `readings` are those of the run in all of them
    """

    start: int
    stop: int
    document_start: int
    text: str
    occurrences: int = 1


@dataclass(frozen=True, kw_only=True)
class LossChange:
    """The loss of a passage under a model and under the same without some documents, in nats per token.

    branch      the arm that was trained without `documents` documents
    exact       whether it has the bits of a run from the beginning without them
    overlapping   of the documents that were returned, those that the branch forgot
    held_out    change of the loss of held-out text, by the evaluation of both; None: not evaluated
    """

    branch: str
    rule: str
    exact: bool
    documents: int
    before: float
    after: float
    overlapping: tuple[str, ...] = ()
    held_out: float | None = None


@dataclass(frozen=True, kw_only=True)
class TracedPassage:
    """A passage whose runs of tokens are looked for in the training stream.

    tokens, continued   of the passage, and of the model's greedy continuation
    shortest    tokens of a run that is looked for
    covered     tokens of passage and continuation in such a run of any document; None: not known
    nats        loss of the passage under the trained model, its sum; None: not asked for
    """

    tokens: int
    continued: int = 0
    continuation: str = ""
    shortest: int
    covered: int | None = None
    nats: float | None = None
    changes: tuple[LossChange, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TracedDocument:
    """An occurrence of a document in the training stream, and the readings that were asked for.

    stage        of the stream, "" for one without stages
    occurrence   from 0: a document may be repeated
    start, stop  its tokens in the stream
    forgotten    rule by which the run forgot it: "replace", "drop"; "": it did not
    nats, scored   its loss under the trained model, and the tokens that it is the sum of; None: not known
    run          what it has in common with the passage that was asked for
    """

    document_id: str
    url: str = ""
    source: str = ""
    licence: str = ""
    language: str = ""
    probe_id: str = ""
    stage: str = ""
    occurrence: int = 0
    start: int
    stop: int
    readings: tuple[Reading, ...] = ()
    forgotten: str = ""
    run: CommonRun | None = None
    text: str | None = None
    nats: float | None = None
    scored: int = 0


@dataclass(frozen=True, kw_only=True)
class ArmTrace:
    """The trace of one arm.

    kind         of the job that trained it; only of "pretrain" readings are known
    steps, done  of the configuration, and those that were trained
    count        documents that match, of which `documents` are the first
    first_step   that read any of them; None: none did
    checkpoints  steps of the checkpoints that are stored; those from first_step on contain the documents
    started_from a folder that this one was trained from, and that contains the documents
    release      the release that this is the run of; "" for a run
    passage      of a trace of a passage
    remarks      what is not known, and why
    error        why nothing is known of an arm below a folder; "" for others
    """

    arm: str
    kind: str = PRETRAIN
    steps: int = 0
    done: int = 0
    count: int = 0
    first_step: int | None = None
    documents: tuple[TracedDocument, ...] = ()
    checkpoints: tuple[int, ...] = ()
    started_from: str = ""
    release: str = ""
    passage: TracedPassage | None = None
    remarks: tuple[str, ...] = ()
    error: str = ""

    @property
    def contains(self) -> bool:
        """Whether its weights have seen a document that was asked for."""
        return self.first_step is not None or bool(self.started_from)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Result of a trace: one entry for each arm of the run, or below the folder."""

    arms: tuple[ArmTrace, ...] = ()

    @property
    def count(self) -> int:
        """Documents found, over all arms."""
        return sum(arm.count for arm in self.arms)
