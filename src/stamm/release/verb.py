"""`stamm.release`: write everything that a run has about one model to a folder, and upload it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stamm.activations import catalog
from stamm.base.config import assignments, from_plain, override
from stamm.base.console import Console
from stamm.base.errors import ConfigError
from stamm.base.files import new_folder
from stamm.base.schema import read_record
from stamm.corpus.transparency.config import EvidenceConfig
from stamm.export.config import ExportConfig
from stamm.export.registry import TARGETS
from stamm.export.verb import export_arm
from stamm.recipes.jobs import job
from stamm.recipes.trained_models import changed_settings, one_arm_of
from stamm.release.checksums import SUMS
from stamm.release.config import ReleaseConfig
from stamm.release.facts import evidence_settings, read_release_facts
from stamm.release.kernel_folder import write_kernel_folder
from stamm.release.layout import PARITY, RECORD, TOP_FORMAT
from stamm.release.push import check_repository
from stamm.release.push import push as push_folder
from stamm.release.records import ReleaseFile
from stamm.release.write_release import check_destination, planned_files, write_release
from stamm.runs.arms import run_of_arm
from stamm.runs.command_receipts import recorded
from stamm.runs.model_outputs import weights_sha256
from stamm.runs.run import Run

_EVIDENCE = "evidence."


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release, or of a dry run what it would be.

    arm       whose model it is; None for an activation of the catalogue, in the layout of the kernels hub
    files     of a dry run: bytes by name; {} where an export comes first
    exports   of a dry run: targets that would be exported first
    pushed    address of the upload; "" without one
    """

    folder: Path
    arm: Path | None = None
    files: Mapping[str, int] = field(default_factory=dict)
    exports: tuple[str, ...] = ()
    pushed: str = ""

    @property
    def record(self) -> ReleaseFile:
        """release.json of the folder."""
        return read_record(ReleaseFile, self.folder / RECORD)


def release(
    run: str | os.PathLike[str],
    *changes: str,
    out: str | os.PathLike[str],
    sign: str | os.PathLike[str] | None = None,
    push: str | None = None,
    dry_run: bool = False,
    written: Callable[[Path], None] | None = None,
    **settings: Any,
) -> Release:
    """Write weights, cards, results and records of one model to the folder `out`; upload it with `push`.

        stamm.release("runs/demo/arms/xielu", out="release").record.model_sha256

    run        one arm, a run with one arm, or the name of an activation
    changes, settings   of `ReleaseConfig`; evidence.KEY for the corpus documents
    sign       private key (PEM) that signs
    push       OWNER/NAME on the Hub
    dry_run    write nothing: the result has every file with its size
    written    is called with the folder when it is complete, before an upload, which may fail
    Raises     StammError with what is wrong and the fix
    """
    words = assignments(changes, settings)
    if not Path(run).exists() and run in catalog.names():
        if words or sign or push:
            raise ConfigError(f"a kernel folder of {run} takes --out and --dry-run alone")
        if not dry_run:
            write_kernel_folder(catalog.get(str(run)), Path(out))
            if written is not None:
                written(Path(out))
        return Release(folder=Path(out))
    arm, folder = one_arm_of(Path(run)), new_folder(out)
    key = Path(sign) if sign else None
    if push:
        check_repository(push)
    if not dry_run:  # an export takes long
        check_destination(folder, weights_sha256(arm / "model"), key)
    root = run_of_arm(arm)
    config = override(ReleaseConfig(), [word for word in words if not word.startswith(_EVIDENCE)])
    evidence = _evidence(root, [word for word in words if word.startswith(_EVIDENCE)])
    lock = contextlib.nullcontext() if dry_run else Run(root, "", (), None).locked()
    with lock, contextlib.closing(Console()) as console:
        missing = _missing_exports(config, arm)
        if dry_run and missing:
            return Release(folder=folder, arm=arm, exports=tuple(missing))
        for target in missing:
            export_folder = arm / "export"
            export_folder.mkdir(exist_ok=True)
            chosen = changed_settings(root, "export", ExportConfig, _target(target))
            with recorded(root, f"export.{arm.resolve().name}", export_folder):
                export_arm(arm, export_folder, chosen, console)
        facts = read_release_facts(config, arm, evidence)
        if TOP_FORMAT not in facts.exports and not config.formats:
            console.log(
                f"The release has no export to {TOP_FORMAT}, which most libraries load: run `stamm"
                f" export {arm} target={TOP_FORMAT}` first to include it."
            )
        if dry_run:
            return Release(folder=folder, arm=arm, files=planned_files(config, facts, job))
        write_release(config, facts, folder, job, key, console.log)
    if written is not None:
        written(folder)
    message = f"{facts.record.name}, weights {facts.record.model_sha256[:16]}, {SUMS}"
    return Release(
        folder=folder, arm=arm, pushed=push_folder(folder, push, message) if push else ""
    )


def _evidence(root: Path, changes: Sequence[str]) -> EvidenceConfig:
    """The settings of the corpus documents: the run's own, or the defaults, with the changes."""
    stored = evidence_settings(root)
    given = EvidenceConfig() if stored is None else from_plain(EvidenceConfig, stored)
    return override(given, [word.removeprefix(_EVIDENCE) for word in changes])


def _missing_exports(config: ReleaseConfig, arm: Path) -> list[str]:
    made = {path.parent.name for path in (arm / "export").glob(f"*/{PARITY}")}
    return sorted((set(config.formats) or made or {TOP_FORMAT}) - made)


def _target(name: str) -> list[str]:
    """The settings of an export by the name of its folder: gguf_q8_0 has target gguf and Q8_0."""
    target, _, kind = name.partition("_")
    if kind and target in TARGETS:
        return [f"target={target}", f"quantization={kind.upper()}"]
    return [f"target={name}", "quantization=F32"]
