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
class TracedDocument:
    """An occurrence of a document in the training stream, and the readings that were asked for.

    stage        of the stream, "" for one without stages
    occurrence   from 0: a document may be repeated
    start, stop  its tokens in the stream
    nats, scored   its loss under the trained model, and the tokens that it is the sum of; None: not known
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
