"""Configuration of exact unlearning. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from stamm.base.bounds import AtLeastOne, Natural, distinct, not_empty
from stamm.base.config import Bounded
from stamm.corpus.dedup.config import DedupConfig
from stamm.pretrain.config import PretrainConfig

ForgetRule = Literal["replace", "drop"]
Start = Literal["exact", "beginning", "approximate"]


@dataclass(frozen=True, kw_only=True)
class ForgetConfig(PretrainConfig):
    """Pretraining without some documents of its packed corpus, from a checkpoint of the run with them.

    rule   "replace": a sequence that has a token of one is replaced by the next unread sequence.
           "drop": their tokens are hidden. `forget.sequences` defines both

    The other fields are those of the run with the documents.
    """

    rule: ForgetRule = "replace"


@dataclass(frozen=True, kw_only=True)
class ForgetPlanConfig(Bounded):
    """Plan of the training that forgets documents.

    documents   files of deletion requests, as `replay.deletions`
    start       as in `ForgetRecipe`
    near        detection of near duplicates of the forgotten documents; None: they are not looked for
    passages    forgotten documents, and held-out ones as controls, that are audited; at most
    passage_tokens   of a document that the audit reads; shorter documents are not audited. 0: no audit
    training    the run without the documents
    """

    documents: Annotated[tuple[str, ...], not_empty(), distinct("names a file twice")]
    start: Start = "exact"
    near: DedupConfig | None = None
    passages: AtLeastOne = 64
    passage_tokens: Natural = 0
    training: ForgetConfig = field(default_factory=ForgetConfig)
