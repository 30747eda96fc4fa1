"""Files of every run folder: config.json, manifest.json, steps/NAME.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """config.json: the request of a run, or the configuration of one arm.

    kind     "pretrain" for an arm; "" for a run
    config   resolved, as `stamm.base.config.to_plain` writes it
    """

    SCHEMA: ClassVar[int] = 1
    SEALED: ClassVar[bool] = True

    version: str = ""
    recipe: str = ""
    overrides: tuple[str, ...] = ()
    kind: str = ""
    config: object = None


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """An input of a run: its path relative to the folder, and its hash where it was computed."""

    OPEN: ClassVar[bool] = True

    path: str = ""
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class ManifestFile:
    """manifest.json: environment of a run; None where it was not recorded.

    command    as typed
    dirty      hash of uncommitted changes in the code; None without any
    started    in UTC
    libraries  versions by name
    files      SHA-256 by name of config.json and, in a complete run, of every steps/NAME.json
    """

    SCHEMA: ClassVar[int] = 1
    SEALED: ClassVar[bool] = True
    OPEN: ClassVar[bool] = True

    command: tuple[str, ...] = ()
    version: str | None = None
    commit: str | None = None
    dirty: str | None = None
    python: str | None = None
    platform: str | None = None
    cpu: str | None = None
    started: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, InputFile] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """Size and SHA-256 of a file that a step or a shard wrote."""

    bytes: int = 0
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ReceiptFile:
    """steps/NAME.json: a finished step; receipts/NAME.json: what a command such as `stamm evaluate` wrote.

    key      identity of the job, its configuration and its inputs
    digest   hash of `outputs`
    folder   of `outputs`, relative to the run folder; "" in files of versions that did not record it
    ended    in seconds since 1970
    records  files that hold times or have other hashes when the step is repeated; not in `digest`
    run      SHA-256 of config.json of the run, in the receipt of a command
    """

    SCHEMA: ClassVar[int] = 1
    SEALED: ClassVar[bool] = True

    step: str
    key: str = ""
    digest: str = ""
    seconds: float
    ended: float
    folder: str = ""
    outputs: Mapping[str, OutputFile] = field(default_factory=dict)
    records: Mapping[str, OutputFile] = field(default_factory=dict)
    run: str = ""


@dataclass(frozen=True, kw_only=True)
class ShardManifest:
    """manifests/NAME.json: a finished shard of a sharded step.

    came_in   records read; came_in = kept + sum(dropped)
    key       identity of the work, its settings and inputs
    facts     results of the job
    """

    SCHEMA: ClassVar[int] = 1

    key: str = ""
    came_in: int = field(metadata={"key": "in"})
    kept: int
    dropped: Mapping[str, int]
    outputs: Mapping[str, OutputFile]
    facts: Mapping[str, Any] = field(default_factory=dict)
