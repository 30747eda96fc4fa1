"""The step of a recipe that audits a model for memorized text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stamm.audit.config import AuditConfig
from stamm.runs.job import Step


def audit_step(
    name: str,
    folder: str,
    model: str,
    config: AuditConfig,
    *,
    tokenizer: str = "tokenizer",
    corpus: str = "corpus",
    passages: str = "",
    external: Mapping[str, Path] | None = None,
) -> Step:
    """Memorization of planted or named passages by the model in a folder.

    name       of the step, "audit.xielu"
    passages   file of an earlier step with the passages, as `AuditConfig.passages`; "": those of the corpus
    external   further files that identify the inputs
    """
    texts = {"passages": passages} if passages else {"corpus": corpus}
    return Step(
        name=name,
        job="audit",
        config=config,
        folder=folder,
        inputs={"model": model, "tokenizer": tokenizer, **texts},
        external={**(external or {}), **config.files()},
        outputs=(".",),
    )
