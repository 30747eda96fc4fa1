"""`stamm.audit`: memorization of planted passages by the models of a run, or of a user's own by any model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stamm.audit.config import AuditConfig
from stamm.audit.results import Audited, audit_in
from stamm.base.config import assignments
from stamm.base.console import Console
from stamm.base.errors import ConfigError
from stamm.models.model_source import ModelSource, find_model, find_models
from stamm.recipes.jobs import job
from stamm.recipes.trained_models import (
    Results,
    changed,
    changed_settings,
    inputs_of,
    places_of,
    writing,
)
from stamm.runs.arms import run_of_arm
from stamm.runs.job import Workspace


def audit(
    run: str | os.PathLike[str],
    *changes: str,
    out: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    **settings: Any,
) -> Results[Audited]:
    """Audit the models of a run, one arm, or a Hugging Face folder with `passages`.

        stamm.audit("runs/demo/arms/xielu", new_tokens=32).only.memorization

    changes, settings   of `AuditConfig`: "new_tokens=32", new_tokens=32
    out        where to write, with several arms one folder each; by default inside the run
    dry_run    run nothing: the result names the folders
    Raises     StammError with what is wrong and the fix
    """
    words, sources = assignments(changes, settings), find_models(run)
    if sources[0].kind == "hub":
        return _audit_folder(sources[0], changed(AuditConfig(), words), out, dry_run)
    arms = [source.model.parent for source in sources]
    config = changed_settings(run_of_arm(arms[0]), "audit", AuditConfig, words)
    places = dict(zip(arms, places_of(arms, "audit", out), strict=True))
    for arm, folder in {} if dry_run else places.items():
        with writing("audit", run_of_arm(arm), arm, folder) as console:
            needs = ("tokenizer",) if config.passages else ("corpus", "tokenizer")
            _audit(config, folder, inputs_of(arm, needs), console)
    return Results(places, audit_in)


def _audit_folder(
    source: ModelSource, config: AuditConfig, out: str | os.PathLike[str] | None, dry_run: bool
) -> Results[Audited]:
    """Audit a Hugging Face folder for the user's own passages."""
    root = source.model
    if not config.passages:
        raise ConfigError(
            f"{root} is a Hugging Face folder: its training passages are unknown",
            fix="Set passages=FILE, a JSONL with text and repeats (0: never seen); see docs/audit.md",
        )
    folder = Path(out or Path("evaluations", source.name, "audit"))
    if not dry_run:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(Console()) as console:
            inputs = {"model": source.model, "tokenizer": source.tokenizer}
            _audit(config, folder, inputs, console)
    return Results({root: folder}, audit_in)


def _audit(config: AuditConfig, folder: Path, inputs: Mapping[str, Path], console: Console) -> None:
    given = dict(inputs)
    if config.reference:
        source = find_model(config.reference)
        given |= {"reference": source.model, "reference_tokenizer": source.tokenizer}
    job("audit")(config, Workspace(folder=folder, inputs=given, progress=console))
