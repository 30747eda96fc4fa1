"""`stamm evaluate`: evaluate runs, their checkpoints, and Hugging Face folders; compare two models."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stamm.base.config import to_plain
from stamm.base.console import Console, Progress
from stamm.base.errors import DataError, RunError, visible
from stamm.base.files import sha256_file, sha256_value, write_text
from stamm.base.shutdown import interrupt_delayed
from stamm.cli.arg_types import add_changes, text
from stamm.cli.model_verbs import changed, changed_settings, inputs_of, settings_of
from stamm.cli.output import print_json, print_table
from stamm.evaluate.config import EvaluateConfig
from stamm.models.hf_files import is_hub_folder
from stamm.runs.arms import run_of_arm, trained_arms
from stamm.runs.command_receipts import recorded
from stamm.runs.job import Workspace
from stamm.runs.run import Run

if TYPE_CHECKING:
    from stamm.evaluate.text_model import TextModel

CURVES = "curves"
_DONE = ".evaluated"


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of the verb."""
    parser.add_argument(
        "run",
        type=text,
        metavar="RUN_OR_FOLDER",
        help="a run folder, one arm of it, or a Hugging Face folder",
    )
    add_changes(
        parser, "tasks=hellaswag,mine.jsonl, task_folder, shots, chat, checkpoints=all and others"
    )
    parser.add_argument(
        "--against",
        type=text,
        metavar="RUN_OR_FOLDER",
        help="evaluate this model too, and compare on the same items",
    )
    parser.add_argument(
        "--out",
        type=text,
        metavar="PATH",
        help="results of a Hugging Face folder (default: evaluations/NAME)",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be written, run nothing"
    )


def run(options: argparse.Namespace, verb: str) -> int:
    """Evaluate, then print the table of results and the folders that hold them."""
    first = _targets(options.run, options.out)
    usual = _usual(options.run)
    config = _changed(options.run, options.changes)
    if config.checkpoints == "all":
        return _curves(options, config, usual, first)
    rival = _targets(options.against, None) if options.against else {}
    if len(rival) > 1:
        named = ", ".join(map(str, rival))
        raise RunError(f"{options.against} holds {len(rival)} models", fix=f"Name one: {named}")
    mixed = not all(map(is_hub_folder, {**first, **rival}))
    for model, folder in {**first, **rival}.items():
        if options.dry_run:
            print(f"{verb} {model} -> {folder}")
        else:
            own = config
            if mixed and is_hub_folder(model):  # read for the held-out text of the other
                own = replace(config, context=usual.context, overlap=usual.overlap)
            _evaluate(model, folder, own, usual)
    if not options.dry_run:
        _print(options, config, usual, first, rival)
    return 0


def _targets(named: str, out: str | None) -> dict[Path, Path]:
    """The folder of results of each model at a place: an arm's evaluate/, or --out."""
    root = Path(named)
    if is_hub_folder(root):
        return {root: Path(out) if out else Path("evaluations") / root.resolve().name}
    if not (root / "config.json").is_file():
        raise RunError(
            f"{root} is neither a run folder nor a Hugging Face folder",
            fix="`stamm ls runs` lists the runs",
        )
    if out:
        raise RunError("--out is for Hugging Face folders", fix="Results of a run are kept in it")
    arms = trained_arms(root)
    if not arms:
        raise RunError(f"{root} holds no trained model yet", fix="Finish its run first")
    return {arm: arm / "evaluate" for arm in arms}


def _usual(named: str) -> EvaluateConfig:
    """The run's own settings, or the defaults."""
    root = Path(named)
    given = None if is_hub_folder(root) else settings_of(run_of_arm(root), "evaluate")
    return given or EvaluateConfig()


def _changed(named: str, changes: list[str]) -> EvaluateConfig:
    """The run's own settings, or the defaults, with the changes."""
    root = Path(named)
    config: EvaluateConfig = (
        changed(EvaluateConfig(), changes)
        if is_hub_folder(root)
        else changed_settings(run_of_arm(root), "evaluate", changes)
    )
    return config


def _evaluate(model: Path, folder: Path, config: EvaluateConfig, usual: EvaluateConfig) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(Console()) as console:
        if is_hub_folder(model):
            kept = tuple(name for name in config.tasks if name != "held_out")
            own = replace(config, tasks=kept or config.tasks)
            _with_model(own, usual, Workspace(folder=folder, progress=console), model, hub=True)
            return
        workspace = Workspace(folder=folder, inputs=inputs_of(model, "evaluate"), progress=console)
        root = run_of_arm(model)
        with Run(root, "", (), None).locked(shared=True), _recorded(root, model, folder):
            if config.chat:
                _with_model(config, usual, workspace, model, hub=False)
            else:
                with interrupt_delayed():
                    from stamm.evaluate.job import run as evaluate
                evaluate(config, workspace, usual)


def _recorded(root: Path, arm: Path, folder: Path) -> contextlib.AbstractContextManager[None]:
    return recorded(root, f"evaluate.{arm.resolve().name}", folder)


def _with_model(
    config: EvaluateConfig, usual: EvaluateConfig, workspace: Workspace, model: Path, *, hub: bool
) -> None:
    """Evaluate a model with the chat format of its tokenizer, where it has one."""
    with interrupt_delayed():
        from stamm.align.model_source import unused_of
        from stamm.evaluate.job import evaluate_model
    for sentence in unused_of(model)[1] if hub else ():
        workspace.progress.log(sentence)
    loaded = model_with_chat(model, needed=config.chat or not hub)
    evaluate_model(config, workspace, loaded, usual)


def model_with_chat(folder: Path, *, needed: bool) -> TextModel:
    """The model of a run's arm or of a Hugging Face folder, with its chat format where it has one.

    needed   whether a model without a chat format is an error
    """
    with interrupt_delayed():
        from stamm.align.model_source import check_vocabulary, find_model, load_chat_model
        from stamm.evaluate.text_model import load_tokenizer, text_model
        from stamm.models.hub_folder import hub_weights_sha256, load_hub
    source = find_model(str(folder))
    try:
        loaded = load_chat_model(source)
        decoder, sha256 = loaded.decoder, loaded.weights_sha256
        tokenizer: Any = loaded.tokenizer
        chat = loaded.chat
    except DataError:
        if needed:
            raise
        decoder, sha256 = load_hub(source.model), hub_weights_sha256(source.model)
        tokenizer, chat = load_tokenizer(source.tokenizer), None
        check_vocabulary(decoder.config, tokenizer.size, source.tokenizer)
    return text_model(decoder, tokenizer, source.tokenizer, sha256, chat)


def _curves(
    options: argparse.Namespace,
    config: EvaluateConfig,
    usual: EvaluateConfig,
    arms: Mapping[Path, Path],
) -> int:
    """Evaluate every checkpoint of every arm; one that is done is not repeated."""
    with interrupt_delayed():
        from stamm.engine.checkpoint_files import STATE, checkpoint_steps
    for arm in arms:
        steps = checkpoint_steps(arm / "checkpoints")
        if not steps:
            raise RunError(f"{arm} holds no checkpoints", fix="Keep more with checkpoint_every")
        for step in steps:
            path = arm / "checkpoints" / f"step-{step:08d}"
            folder = arm / CURVES / path.name
            if options.dry_run:
                print(f"evaluate {path} -> {folder}")
                continue
            identity = sha256_value([to_plain(config), sha256_file(path / STATE)])
            mark = folder / _DONE
            if not mark.is_file() or mark.read_text(encoding="utf-8") != identity:
                folder.mkdir(parents=True, exist_ok=True)
                root = run_of_arm(arm)
                with (
                    Run(root, "", (), None).locked(shared=True),
                    _recorded(root, arm, folder),
                    contextlib.closing(Console()) as console,
                ):
                    _evaluate_checkpoint(config, usual, arm, path, folder, console)
                write_text(mark, identity)
        if not options.dry_run:
            print(arm / CURVES)
    return 0


def _evaluate_checkpoint(
    config: EvaluateConfig,
    usual: EvaluateConfig,
    arm: Path,
    path: Path,
    folder: Path,
    progress: Progress,
) -> None:
    with interrupt_delayed():
        from stamm.evaluate.job import evaluate_model
    inputs = inputs_of(arm, "evaluate")
    model = checkpoint_model(arm / "model", path, inputs["tokenizer"])
    progress.log(f"{path.name}")
    workspace = Workspace(folder=folder, inputs=inputs, progress=progress)
    evaluate_model(config, workspace, model, usual)


def checkpoint_model(model: Path, path: Path, tokenizer: Path) -> TextModel:
    """The model of a checkpoint.

    model   folder of the trained model, whose configuration it has
    """
    with interrupt_delayed():
        import torch

        from stamm.engine.checkpoint import Checkpoints
        from stamm.engine.distributed import DistributedContext
        from stamm.evaluate.text_model import load_tokenizer, text_model
        from stamm.models.decoder import Decoder
        from stamm.models.serialization import checked_config
    decoder = Decoder(checked_config(model))
    checkpoints = Checkpoints(path.parent, 1, DistributedContext(device=torch.device("cpu")))
    updater: Any = None  # read for the optimizer state alone
    sha256 = checkpoints.load(path, decoder, updater, moments=False)
    return text_model(decoder.eval(), load_tokenizer(tokenizer), tokenizer, sha256)


def _print(
    options: argparse.Namespace,
    config: EvaluateConfig,
    usual: EvaluateConfig,
    first: Mapping[Path, Path],
    rival: Mapping[Path, Path],
) -> None:
    """Print the results of the tasks that the command names; a folder may hold more."""
    with interrupt_delayed():
        from stamm.evaluate.job import result_file
        from stamm.evaluate.registry import load_tasks
        from stamm.reports.results import read_task_files
        from stamm.reports.task_comparison import compare_folders, difference_table
        from stamm.reports.task_results import task_tables
    every = {**first, **rival}
    loaded = load_tasks(config.tasks, config.task_folder)
    named = {result_file(task, config, usual) for task in loaded}
    tasks = [
        (str(model), tuple(one for one in read_task_files(folder, ()) if one.task in named))
        for model, folder in every.items()
    ]
    compared = [
        (str(other), str(model), *compare_folders(results, folder, named))
        for other, results in rival.items()
        for model, folder in first.items()
    ]
    pairs = [(other, model, found) for other, model, found, _ in compared]
    not_compared = [
        {"against": other, "model": model, "task": task, "reason": reason}
        for other, model, _, reasons in compared
        for task, reason in reasons.items()
    ]
    if options.json:
        plain: Callable[[Any], Any] = asdict
        print_json(
            {
                "folders": {str(model): str(folder) for model, folder in every.items()},
                "tasks": {name: [plain(one) for one in found] for name, found in tasks},
                "differences": [
                    {"against": other, "model": model, **plain(one)}
                    for other, model, found in pairs
                    for one in found
                ],
                "not_compared": not_compared,
            }
        )
        return
    found = task_tables(tasks)
    for table in (
        found.results,
        found.metrics,
        found.fairness,
        found.sources,
        found.groups,
        difference_table(pairs),
    ):
        if table is not None:
            print_table(table.columns, table.rows)
            print(f"{table.note}\n" if table.note else "")
    for one in not_compared:
        print(visible("Not compared: {task}, {model} against {against}: {reason}.".format(**one)))
    for folder in every.values():
        print(folder)
