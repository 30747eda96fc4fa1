"""`evaluate`, `audit`, `export`, `report`: measure or write out what a run has trained."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stamm.audit.config import AuditConfig
from stamm.base.config import override
from stamm.base.console import Console
from stamm.base.errors import RunError
from stamm.base.files import read_json
from stamm.cli.jobs import job
from stamm.evaluate.config import EvaluateConfig
from stamm.export.config import ExportConfig
from stamm.reports.config import ReportConfig
from stamm.runs.job import Workspace
from stamm.runs.run import Run

_CONFIGS: dict[str, Any] = {
    "evaluate": EvaluateConfig,
    "audit": AuditConfig,
    "export": ExportConfig,
    "report": ReportConfig,
}
_NEEDS = {
    "evaluate": ("pack", "tokenizer"),
    "audit": ("corpus", "tokenizer"),
    "export": ("pack", "tokenizer"),
}


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The flags of the four verbs."""
    parser.add_argument("run", metavar="RUN", help="a run folder, or one arm of it")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="changes to the settings")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, do nothing")
    if verb in ("report", "export"):
        parser.add_argument("--out", metavar="PATH", help="where to write (default: in the run)")


def run(options: argparse.Namespace, verb: str) -> int:
    """Do it for the arm given, or for every arm of the run given."""
    root = Path(options.run)
    config = override(_CONFIGS[verb](), options.changes)
    if not (root / "config.json").is_file():
        raise RunError(f"{root} is not a run folder", fix="`stamm ls runs` lists them")
    if verb == "report":
        return _report(root, config, options)
    arms = _arms(root)
    if options.dry_run:
        for arm in arms:
            print(f"{verb} {arm} -> {_target(arm, verb, options)}")
        return 0
    for arm in arms:
        folder = _target(arm, verb, options)
        folder.mkdir(parents=True, exist_ok=True)
        with Run(_top(arm), "", (), None).locked():
            inputs = {"model": arm / "model", **{n: _input(arm, n) for n in _NEEDS[verb]}}
            job(verb)(config, Workspace(folder=folder, inputs=inputs, progress=Console()))
        print(folder)
    return 0


def _report(root: Path, config: ReportConfig, options: argparse.Namespace) -> int:
    from stamm.reports.job import (
        write_report,
    )  # the page's libraries load only when it is asked for

    out = Path(options.out) if options.out else root / "report.html"
    if not options.dry_run:
        write_report(root, out, config)
    print(out)
    return 0


def _arms(root: Path) -> list[Path]:
    if (root / "arms").is_dir():
        arms = sorted(path for path in (root / "arms").iterdir() if (path / "model").is_dir())
    else:
        arms = [root] if (root / "model" / "decoder.json").is_file() else []
    if not arms:
        raise RunError(f"{root} holds no trained model yet", fix="Let its run end first")
    return arms


def _target(arm: Path, verb: str, options: argparse.Namespace) -> Path:
    return Path(options.out) if getattr(options, "out", None) else arm / verb


def _top(arm: Path) -> Path:
    return arm.parent.parent if arm.parent.name == "arms" else arm


def _input(arm: Path, name: str) -> Path:
    """Where an arm's input lies: beside the arms, or where its manifest recorded it."""
    beside = _top(arm) / name
    if beside.is_dir():
        return beside
    manifest = arm / "manifest.json"
    inputs = read_json(manifest).get("inputs", {}) if manifest.is_file() else {}
    for recorded in ([inputs[name]] if name in inputs else []) + list(inputs.values()):
        path = Path(arm / str(recorded["path"])).resolve()
        if path.name == name and path.is_dir():
            return path
        if (path.parent / name).is_dir():
            return path.parent / name
    raise RunError(f"{arm} does not say where its {name} is", where=str(manifest))
