"""forget/forget.json: the documents that a model forgets, and the training that forgets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

FORGET = "forget.json"
DOCUMENTS, NEAR, PASSAGES = "documents.parquet", "near_duplicates.txt", "passages.jsonl"


@dataclass(frozen=True, kw_only=True)
class ForgetFile:
    """Documents, the first step that read one, and the checkpoint that training resumes from.

    requests, unmatched   deletion requests, and those that name no document of the corpus
    documents             distinct documents in the packed corpus; `occurrences` counts repeats
    tokens                of all occurrences
    sequences             training sequences that have a token of one; each is replaced, or its tokens hidden
    read_again            replacements that the run has read before, since the corpus holds no others
    first_step            the first step that read one
    checkpoint            step of the checkpoint that training resumes from; 0: from the beginning
    read_before           sequences with a token of one that were read before it: 0 for exact unlearning
    differences           of this machine and that of the run, which may change bits; () for exact unlearning
    seconds               expected time of training; None where the run has no timing
    near_duplicates       documents like a forgotten one that are not forgotten; None: not looked for
    audited, controls     passages of passages.jsonl
    """

    SCHEMA: ClassVar[int] = 1

    rule: str
    start: str
    requests: int
    unmatched: int
    documents: int
    occurrences: int
    tokens: int
    sequences: int
    read_again: int
    first_step: int
    checkpoint: int
    num_steps: int
    read_before: int
    differences: tuple[str, ...]
    seconds: float | None
    near_duplicates: int | None
    audited: int
    controls: int

    @property
    def is_exact(self) -> bool:
        """Whether the bits are those of a run from the beginning without the documents."""
        return not (self.read_before or self.differences)
