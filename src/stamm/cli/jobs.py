"""Which code does which kind of job. Loaded when the first job is about to start."""

from __future__ import annotations

import importlib

from stamm.base.ending import interrupt_held
from stamm.base.errors import RunError
from stamm.runs.run import Job

_JOBS = {
    "plant": ("stamm.corpus.planting", "plant"),
    "screen": ("stamm.corpus.screening", "screen_inputs"),
    "decide": ("stamm.corpus.deciding", "decide"),
    "settle": ("stamm.corpus.settling", "settle"),
    "fetch": ("stamm.corpus.consent.fetch_job", "fetch"),
    "head": ("stamm.corpus.heads.job", "train"),
    "languages": ("stamm.corpus.language.train", "train"),
    "bounds": ("stamm.corpus.quality.fit", "fit"),
    "replay": ("stamm.corpus.replay", "replay"),
    "take_tokenizer": ("stamm.corpus.retaking", "take_tokenizer"),
    "retake": ("stamm.corpus.retaking", "retake"),
    "tokenizer": ("stamm.corpus.tokenizer", "train_tokenizer"),
    "tokenize": ("stamm.corpus.tokenizing", "tokenize"),
    "pack": ("stamm.corpus.packing", "pack"),
    "pretrain": ("stamm.pretrain.job", "run"),
    "pace": ("stamm.pretrain.pace", "run"),
    "refine": ("stamm.pretrain.tuning", "refine"),
    "choose": ("stamm.pretrain.tuning", "choose"),
    "evaluate": ("stamm.evaluate.job", "run"),
    "audit": ("stamm.audit.job", "run"),
    "export": ("stamm.export.job", "run"),
    "evidence": ("stamm.corpus.evidence.job", "evidence"),
    "report": ("stamm.reports.job", "run"),
    "compare": ("stamm.reports.comparison_job", "run"),
}
# All processes that torchrun started do these; the first alone does all others.
TOGETHER = {"pretrain", "pace"}


def job(kind: str) -> Job:
    """The function that does a job of this kind.

    Raises   RunError when a library it needs is not installed.
    """
    module, function = _JOBS[kind]
    try:
        with interrupt_held():
            found: Job = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise RunError(
            f"the {kind} job needs {error.name}, which is not installed",
            fix="Install stamm with its requirements (`make setup`)",
        ) from error
    return found
