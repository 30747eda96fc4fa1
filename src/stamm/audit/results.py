"""Results of a memorization audit as readers of a run want them, checked against the weights of the model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.audit.records import GridFile, MembershipFile, SafetyFile
from stamm.base.receipts import is_present
from stamm.base.schema import read_lines
from stamm.evaluate.records import ContinuationLine, MemorizationFile
from stamm.pages.text import unequal_settings
from stamm.runs.model_outputs import read_result_if_present
from stamm.runs.run_view import ArmView

MOST_CONTINUATIONS = 20_000
"""More passages are never shown; an audit of a large model writes thousands."""


@dataclass(frozen=True, kw_only=True)
class Audited:
    """Audit of one arm; None, or empty, where it was not run."""

    memorization: MemorizationFile | None = None
    grid: GridFile | None = None
    membership: MembershipFile | None = None
    safety: SafetyFile | None = None
    continuations: tuple[ContinuationLine, ...] = ()


AuditedArm = tuple[ArmView, Audited]


def read_audited(arm: ArmView) -> Audited:
    """The audit of an arm.

    Raises   DataError when a file does not follow its schema, or was made from other weights than
             the arm's model has
    """
    return audit_in(arm.audit, arm.folder / "model")


def read_memorization(arm: ArmView) -> MemorizationFile | None:
    """memorization.json of the audit of an arm, without the passages; None where it was not audited.

    Raises   DataError as `read_audited`
    """
    path = arm.audit / "memorization.json"
    return read_result_if_present(MemorizationFile, path, arm.folder / "model")


def audit_in(folder: Path, model: Path | None = None) -> Audited:
    """The audit in a folder.

    model    as of `read_result`

    Raises   DataError as `read_result`
    """
    continuations = folder / "continuations.jsonl"
    return Audited(
        memorization=read_result_if_present(MemorizationFile, folder / "memorization.json", model),
        grid=read_result_if_present(GridFile, folder / "grid.json", model),
        membership=read_result_if_present(MembershipFile, folder / "membership.json", model),
        safety=read_result_if_present(SafetyFile, folder / "safety.json", model),
        continuations=tuple(
            itertools.islice(read_lines(ContinuationLine, continuations), MOST_CONTINUATIONS)
        )
        if is_present(continuations)
        else (),
    )


def unequal_audit(audits: Sequence[tuple[str, MemorizationFile]]) -> str:
    """A sentence when passages were shown or continued at other lengths; "" when they compare.

    audits   by the name of their arm
    """
    return unequal_settings(
        "Memorization audits",
        [
            (name, f"{audit.prefix_tokens:,} prefix tokens, {audit.new_tokens:,} new tokens")
            for name, audit in audits
        ],
    )
