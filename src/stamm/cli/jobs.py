"""Which code does which kind of job. Loaded when the first job is about to start."""

from __future__ import annotations

import importlib

from stamm.base.errors import RunError
from stamm.runs.run import Job

_JOBS = {
    "corpus": ("stamm.corpus.job", "build_corpus"),
    "tokenizer": ("stamm.corpus.job", "train_tokenizer"),
    "pack": ("stamm.corpus.job", "pack"),
    "pretrain": ("stamm.pretrain.job", "run"),
    "evaluate": ("stamm.evaluate.job", "run"),
    "audit": ("stamm.audit.job", "run"),
    "export": ("stamm.export.job", "run"),
    "report": ("stamm.reports.job", "run"),
}


def job(kind: str) -> Job:
    """The function that does a job of this kind.

    Raises   RunError when a library it needs is not installed.
    """
    module, function = _JOBS[kind]
    try:
        found: Job = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise RunError(
            f"the {kind} job needs {error.name}, which is not installed",
            fix="Install stamm with its requirements (`make setup`)",
        ) from error
    return found
