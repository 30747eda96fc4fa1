"""`stamm audit`, `export` and `report`: audit, export or report trained models."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stamm.audit.config import AuditConfig
from stamm.base.config import from_plain, override
from stamm.base.console import Console
from stamm.base.errors import ConfigError, RunError
from stamm.base.files import read_json
from stamm.base.schema import read_record_if_present
from stamm.base.user_code import check_stored_code
from stamm.cli.arg_types import add_changes, text
from stamm.evaluate.config import EvaluateConfig
from stamm.export.config import BUILT_IN_TARGETS, ExportConfig
from stamm.models.config import DecoderConfig
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.jobs import job
from stamm.recipes.resolve import resolve
from stamm.recipes.study import Study
from stamm.recipes.unread_settings import check_changes
from stamm.reports.config import ReportConfig
from stamm.runs.arms import input_of_arm, prepared_data_of_arm, run_of_arm, trained_arms
from stamm.runs.command_receipts import recorded, write_command_receipt, writing_alone
from stamm.runs.job import Workspace
from stamm.runs.manifest import MANIFEST_FIX
from stamm.runs.model_outputs import DECODER
from stamm.runs.run import Run
from stamm.runs.schemas.run import ManifestFile

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
    """Add the arguments of the verbs."""
    folder = ", or a Hugging Face folder (with passages=FILE)" if verb == "audit" else ""
    results = ", or results of a Hugging Face folder" if verb == "report" else ""
    parser.add_argument(
        "run", type=text, metavar="RUN", help=f"a run folder, or one arm of it{folder}{results}"
    )
    add_changes(parser, "changes to the settings")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be written, run nothing"
    )
    if verb in ("report", "export", "audit"):
        parser.add_argument(
            "--out",
            type=text,
            metavar="PATH",
            help="where to write; with several arms, one folder each (default: inside the run)",
        )


def run(options: argparse.Namespace, verb: str) -> int:
    """Run the verb for the given arm, or for every arm of the given run."""
    root = Path(options.run)
    if verb == "report":
        from stamm.reports.results import is_results_folder

        if is_results_folder(root):
            return _report(root, changed(ReportConfig(), options.changes), options)
    if verb == "export" and options.dry_run and not root.exists():
        return _plan_recipe(options)
    if not (root / "config.json").is_file():
        raise RunError(f"{root} is not a run folder", fix="`stamm ls runs` lists them")
    if verb == "audit" and not (root / "manifest.json").is_file() and not trained_arms(root):
        return _audit_folder(root, changed(AuditConfig(), options.changes), options)
    config = changed_settings(run_of_arm(root), verb, options.changes)
    if verb == "report":
        return _report(root, config, options)
    arms = _arms(root)
    targets = _targets(arms, verb, options)
    if options.dry_run:
        for arm, folder in zip(arms, targets, strict=True):
            print(f"{verb} {arm} -> {folder}")
            if isinstance(config, ExportConfig) and config.target in BUILT_IN_TARGETS:
                stored = read_json(arm / "model" / DECODER)["decoder"]
                _print_plan(config, from_plain(DecoderConfig, stored))
        return 0
    for arm, folder in zip(arms, targets, strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        root = run_of_arm(arm)
        with (
            Run(root, "", (), None).locked(shared=True),
            writing_alone(folder, verb),
            recorded(root, f"{verb}.{arm.resolve().name}", folder),
            contextlib.closing(Console()) as console,
        ):
            job(verb)(
                config,
                Workspace(folder=folder, inputs=inputs_of(arm, verb, config), progress=console),
            )
        print(folder)
    return 0


def _print_plan(config: ExportConfig, model: DecoderConfig) -> None:
    from stamm.export.plan import export_plan

    print("\n".join(export_plan(config, model).lines()))


def _plan_recipe(options: argparse.Namespace) -> int:
    """Print the files and the memory of an export of a recipe's models, before they are trained."""
    recipe = resolve(options.run, []).config
    if isinstance(recipe, Study):
        models = {arm.name: recipe.pretrain_of(arm).model for arm in recipe.arms}
    elif isinstance(recipe, PretrainConfig):
        models = {options.run: recipe.model}
    else:
        raise ConfigError(f"the recipe {options.run} trains no model of its own")
    config = changed(ExportConfig(), options.changes)
    for name, model in models.items():
        print(f"export {name}")
        _print_plan(config, model)
    return 0


def _audit_folder(root: Path, config: AuditConfig, options: argparse.Namespace) -> int:
    """Audit a Hugging Face folder for the user's own passages."""
    from stamm.align.model_source import find_model

    source = find_model(str(root))
    if not config.passages:
        raise ConfigError(
            f"{root} is a Hugging Face folder: its training passages are unknown",
            fix="Set passages=FILE, a JSONL with text and repeats (0: never seen); see docs/audit.md",
        )
    folder = Path(options.out or Path("evaluations", root.resolve().name, "audit"))
    if options.dry_run:
        print(f"audit {root} -> {folder}")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    inputs = {"model": source.model, "tokenizer": source.tokenizer, **_reference(config)}
    with contextlib.closing(Console()) as console:
        job("audit")(config, Workspace(folder=folder, inputs=inputs, progress=console))
    print(folder)
    return 0


def _reference(config: AuditConfig) -> dict[str, Path]:
    """Inputs of the reference model, if any."""
    if not config.reference:
        return {}
    from stamm.align.model_source import find_model

    source = find_model(config.reference)
    return {"reference": source.model, "reference_tokenizer": source.tokenizer}


def inputs_of(arm: Path, verb: str, config: Any = None) -> dict[str, Path]:
    """The inputs of a verb for one arm.

    An aligned or imported arm is exported, and any evaluated, without a packed corpus, too; an audit
    of own passages needs no corpus.
    """
    manifest = read_record_if_present(ManifestFile, arm / "manifest.json", MANIFEST_FIX)
    never_packed = manifest is not None and "pack" not in manifest.inputs
    exported = verb == "export" and (never_packed or bool(prepared_data_of_arm(arm)))
    optional = verb == "evaluate" or exported
    inputs = {"model": arm / "model"}
    own = isinstance(config, AuditConfig) and bool(config.passages)
    inputs.update(_reference(config) if isinstance(config, AuditConfig) else {})
    for name in _NEEDS[verb]:
        if name == "corpus" and own:
            continue
        try:
            inputs[name] = input_of_arm(arm, name)
        except RunError:
            if name != "pack" or not optional:
                raise
    return inputs


def changed_settings(root: Path, verb: str, changes: Sequence[str]) -> Any:
    """The run's own settings for `verb`, or the defaults, with the changes of the command line.

    Raises   ConfigError for code of the run's settings that the changes do not name.
    """
    config = changed(settings_of(root, verb), changes)
    key = {"evaluate": "tasks", "export": "target"}.get(verb, "")
    fix = f"name it on the command line: {key}=mine.py:Name"
    check_stored_code(config, str(root / "config.json"), changes, fix)
    return config


def changed(given: Any, changes: Sequence[str]) -> Any:
    """The settings `given` with the changes of the command line.

    Raises   ConfigError for a change that is not read
    """
    config = override(given, changes)
    check_changes(config, given, changes)
    return config


def settings_of(root: Path, verb: str) -> Any:
    """The run's own settings for `verb`, or the defaults when it has none.

    So repeating a measurement gives the recorded result unless settings are changed.
    """
    path = root / "config.json"
    stored = read_json(path)
    config = stored.get("config") if isinstance(stored, dict) else None
    # `evaluate` of a recipe that is one training job is the evaluation during training.
    section = config.get(verb) if isinstance(config, dict) and "model" not in config else None
    kind = _CONFIGS[verb]
    return kind() if section is None else from_plain(kind, section, str(path))


def _report(root: Path, config: ReportConfig, options: argparse.Namespace) -> int:
    from stamm.reports.comparison import is_comparison
    from stamm.reports.comparison_job import PAGE, write_comparison
    from stamm.reports.job import write_report
    from stamm.reports.search_page import SEARCH_PAGE, write_search
    from stamm.reports.search_result import RESULT

    compared, searched = is_comparison(root), (root / RESULT).is_file()
    name = PAGE if compared else SEARCH_PAGE if searched else "report.html"
    out = Path(options.out) if options.out else root / name
    if out.is_dir():
        raise RunError(f"{out} is a folder", fix="Name a file with --out")
    if not options.dry_run:
        if compared:
            print(f"{write_comparison(root, out, config).text()}\n")
        elif searched:
            print("\n".join(write_search(root, out, config).sentences) + "\n")
        else:
            write_report(root, out, config)
        if out.resolve().is_relative_to(root.resolve()):
            write_command_receipt(root, "report", [out])
    print(out)
    return 0


def _arms(root: Path) -> list[Path]:
    arms = trained_arms(root)
    if not arms:
        raise RunError(f"{root} holds no trained model yet", fix="Finish its run first")
    return arms


def _targets(arms: list[Path], verb: str, options: argparse.Namespace) -> list[Path]:
    """The output folder of each arm: inside the arm, or under --out."""
    if not getattr(options, "out", None):
        return [arm / verb for arm in arms]
    out = Path(options.out)
    found = [out] if len(arms) == 1 else [out / arm.name for arm in arms]
    for folder in (out, *found):
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{folder} is a file", fix="Choose another folder with --out")
    return found
