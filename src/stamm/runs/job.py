"""Jobs and steps: a job reads files, writes files to its own folder, and can be repeated.

No job imports another job. They share the run folder, whose files have schemas.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stamm.base.console import NoProgress, Progress
from stamm.runs.executors import Execution, LocalExecutor

TRAINED = ("config.json", "model", "metrics.jsonl", "summary.json")
"""Outputs of a step that trains a model."""
TRAINING_RECORDS = (
    "manifest.json", "events.json", "log/*.json*", "adapter/*", "checkpoints/*/state.json",
)  # fmt: skip
"""Its records. state.json has the hashes of the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Folders, progress and executor of one job.

    folder     output folder; exists before the job starts
    inputs     input folders and files, by the names that the job documents
    progress   receives progress and messages
    execution  executor of its shards, if any; the outputs do not depend on it
    log        the run's folder for timings; None: they are not stored
    """

    folder: Path
    inputs: Mapping[str, Path] = field(default_factory=dict)
    progress: Progress = field(default_factory=NoProgress)
    execution: Execution = field(default_factory=LocalExecutor)
    log: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """One job of a run: its name, kind, configuration, inputs and required outputs.

    name      unique in the run ("pretrain.xielu")
    job       the kind of job, which the command line maps to code ("pretrain")
    config    the job's frozen configuration
    folder    output folder, relative to the run folder
    inputs    name -> path relative to the run folder; an earlier step's output, or of another run
    after     names of the steps that must be finished before, beside those that write its inputs
    external  input files outside the run folder, by name
    outputs   files and folders that must exist afterwards, relative to `folder`
    records   patterns of other files to record, relative to `folder`, beside those that lie in it:
              timings, states of checkpoints. No step depends on them
    sharded   the job has a manifest per shard: when an input of the step has changed, its folder
              is kept and only the shards concerned are repeated
    unless    name of an earlier step: where the JSON object in its first output has "stop": true, this
              step is left out
    costly    the outputs are expensive: when an input has changed, the folder is moved to
              set-aside/ instead of removed
    """

    name: str
    job: str
    config: Any
    folder: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    external: Mapping[str, Path] = field(default_factory=dict)
    outputs: tuple[str, ...]
    records: tuple[str, ...] = ()
    sharded: bool = False
    costly: bool = False
    unless: str = ""


def after_producers(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps, each after the earlier steps that write what it reads, and after those that it names.

    Checked  tests/unit/runs/test_run.py
    """
    above: dict[Path, list[str]] = {}  # steps that write the path, or what lies below it
    written: dict[Path, list[str]] = {}
    ordered: list[Step] = []
    for step in steps:
        producers: list[str] = []
        for path in map(_normal, step.inputs.values()):
            producers += above.get(path, ())
            producers += (name for parent in path.parents for name in written.get(parent, ()))
        ordered.append(replace(step, after=tuple(dict.fromkeys((*step.after, *producers)))))
        for output in step.outputs:
            path = _normal(Path(step.folder, output))
            written.setdefault(path, []).append(step.name)
            for ancestor in (path, *path.parents):
                above.setdefault(ancestor, []).append(step.name)
    return tuple(ordered)


def _normal(path: str | Path) -> Path:
    return Path(os.path.normpath(path))
