"""Which code does which kind of job. Loaded when the first job is about to start."""

from __future__ import annotations

import importlib

from stamm.base.errors import RunError
from stamm.base.shutdown import interrupt_held
from stamm.runs.run import Job

_JOBS = {
    "plant": ("stamm.corpus.inject_canaries", "plant"),
    "screen": ("stamm.corpus.filter_job", "screen_inputs"),
    "decide": ("stamm.corpus.global_filter_job", "decide"),
    "settle": ("stamm.corpus.finalize_job", "settle"),
    "fetch": ("stamm.corpus.consent.fetch_job", "fetch"),
    "head": ("stamm.corpus.classifiers.job", "train"),
    "languages": ("stamm.corpus.language.train", "train"),
    "bounds": ("stamm.corpus.quality.fit", "fit"),
    "replay": ("stamm.corpus.opt_out_replay", "replay"),
    "take_tokenizer": ("stamm.corpus.reuse_tokens", "take_tokenizer"),
    "retake": ("stamm.corpus.reuse_tokens", "retake"),
    "tokenizer": ("stamm.corpus.tokenizer", "train_tokenizer"),
    "tokenize": ("stamm.corpus.tokenize_job", "tokenize"),
    "pack": ("stamm.corpus.pack_job", "pack"),
    "pretrain": ("stamm.pretrain.job", "run"),
    "pace": ("stamm.pretrain.step_timing", "run"),
    "refine": ("stamm.pretrain.lr_finder", "refine"),
    "choose": ("stamm.pretrain.lr_finder", "choose"),
    "evaluate": ("stamm.evaluate.job", "run"),
    "audit": ("stamm.audit.job", "run"),
    "export": ("stamm.export.job", "run"),
    "evidence": ("stamm.corpus.transparency.job", "evidence"),
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
