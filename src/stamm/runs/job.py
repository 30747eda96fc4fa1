"""What a job is: something that reads files, writes files into its own folder, and can be redone.

Jobs never import one another. They meet in the run folder, as files with a schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stamm.base.console import NoProgress, Progress
from stamm.runs.executors import Execution, LocalWork


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The place one job works in.

    folder     where it writes; made before the job starts
    inputs     the folders or files it reads, by the names that the job documents
    progress   where it says how far it is
    execution  where its shards are done, if it has any; never changes what it leaves
    log        the run's folder for what depends on the clock; None: it is not kept
    """

    folder: Path
    inputs: Mapping[str, Path] = field(default_factory=dict)
    progress: Progress = field(default_factory=NoProgress)
    execution: Execution = field(default_factory=LocalWork)
    log: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """One job of a run: what it is called, what does it, what it reads and what it must leave.

    name      unique in the run ("pretrain.xielu")
    job       the kind of job, which the command line maps to code ("pretrain")
    config    the job's frozen configuration
    folder    where it writes, relative to the run folder
    inputs    name -> path relative to the run folder; each is an earlier step's output
    after     names of the steps whose outputs it reads
    external  files outside the run folder that it reads, by the names they are called by
    outputs   files and folders that must be there afterwards, relative to `folder`
    sharded   it is done shard by shard, and each shard proves itself: when something that the
              step reads has changed, its folder is kept and only what changed is done again
    costly    what it left took long to make: when something that it reads has changed, its folder
              is moved into set-aside/, not removed
    """

    name: str
    job: str
    config: Any
    folder: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    external: Mapping[str, Path] = field(default_factory=dict)
    outputs: tuple[str, ...]
    sharded: bool = False
    costly: bool = False
