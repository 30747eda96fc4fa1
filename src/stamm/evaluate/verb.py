"""`stamm.evaluate`: evaluate runs, their checkpoints and Hugging Face folders; compare two models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stamm.base.config import assignments, to_plain
from stamm.base.console import Console, Progress
from stamm.base.errors import RunError
from stamm.base.files import sha256_file, sha256_value, write_text
from stamm.engine.checkpoint_files import STATE
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.records import TaskFile
from stamm.evaluate.results import read_task_files
from stamm.evaluate.task_comparison import TaskDifference, compare_folders
from stamm.models.hf_files import is_hub_folder
from stamm.models.model_source import find_models
from stamm.recipes.jobs import loaded
from stamm.recipes.trained_models import (
    changed,
    changed_settings,
    check_no_out,
    checkpoints_of,
    evaluation_inputs,
    settings_of,
    writing,
)
from stamm.runs.arms import run_of_arm
from stamm.runs.job import Workspace

CURVES = "curves"
_DONE = ".evaluated"


@dataclass(frozen=True, kw_only=True)
class ModelDifference:
    """One model against another: differences by task, and the reason why other tasks are not compared."""

    against: str
    model: str
    tasks: tuple[TaskDifference, ...]
    not_compared: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Results of the tasks that were asked for; a folder may hold more.

    folders       of the results, by model, or with checkpoints=all by checkpoint
    tasks         results by model or checkpoint; {} in a dry run
    differences   with `against`
    checkpoints   whether checkpoints were evaluated
    """

    folders: Mapping[Path, Path]
    tasks: Mapping[Path, tuple[TaskFile, ...]] = field(default_factory=dict)
    differences: tuple[ModelDifference, ...] = ()
    checkpoints: bool = False


def evaluate(
    run: str | os.PathLike[str],
    *changes: str,
    against: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    **settings: Any,
) -> Evaluation:
    """Evaluate the models of a run, one arm of it, or a Hugging Face folder.

        stamm.evaluate("runs/demo/arms/xielu", tasks=["held_out", "blimp"])

    changes, settings   of `EvaluateConfig`: "shots=2", shots=2
    against    evaluate this model too, and compare on the same items
    out        results of a Hugging Face folder; by default evaluations/NAME, of an export
               evaluations/RUN-ARM-NAME
    dry_run    run nothing: the result names the folders
    Raises     StammError with what is wrong and the fix
    """
    words = assignments(changes, settings)
    first = _targets(run, out)
    (model, *_) = first
    usual = _usual(model)
    config = (
        changed(usual, words)
        if is_hub_folder(model)
        else changed_settings(run_of_arm(model), "evaluate", EvaluateConfig, words)
    )
    if config.checkpoints == "all":
        return _curves(config, usual, first, dry_run)
    rival = _targets(against, None) if against else {}
    if len(rival) > 1:
        named = ", ".join(map(str, rival))
        raise RunError(f"{against} holds {len(rival)} models", fix=f"Name one: {named}")
    _check_folders(first, rival)
    folders = {**first, **rival}
    if dry_run:
        return Evaluation(folders=folders)
    mixed = not all(map(is_hub_folder, folders))
    for model, folder in folders.items():
        own = config
        if mixed and is_hub_folder(model):  # read for the held-out text of the other
            own = replace(config, context=usual.context, overlap=usual.overlap)
        _evaluate(model, folder, own, usual)
    named_tasks = _result_files(config, usual)
    return Evaluation(
        folders=folders,
        tasks={model: _results(folder, named_tasks) for model, folder in folders.items()},
        differences=tuple(
            ModelDifference(against=str(other), model=str(model), tasks=tasks, not_compared=reasons)
            for other, results in rival.items()
            for model, folder in first.items()
            for tasks, reasons in (compare_folders(results, folder, named_tasks),)
        ),
    )


def _targets(named: str | os.PathLike[str], out: str | os.PathLike[str] | None) -> dict[Path, Path]:
    """The folder of results of each model at a place: an arm's evaluate/, or `out`."""
    sources = find_models(named)
    if sources[0].kind == "hub":
        root = sources[0].model
        return {root: Path(out) if out else Path("evaluations") / sources[0].name}
    check_no_out(out)
    return {source.model.parent: source.model.parent / "evaluate" for source in sources}


def _check_folders(first: Mapping[Path, Path], rival: Mapping[Path, Path]) -> None:
    """Raise RunError when two models would write their results to one folder."""
    for other, results in rival.items():
        for model, folder in first.items():
            if folder.resolve() == results.resolve() and model.resolve() != other.resolve():
                raise RunError(
                    f"{model} and {other} would both write to {folder}",
                    fix=f"Set another folder for the results of {model} with --out",
                )


def _usual(model: Path) -> EvaluateConfig:
    """The own settings of a model's run, or the defaults."""
    if is_hub_folder(model):
        return EvaluateConfig()
    return settings_of(run_of_arm(model), "evaluate", EvaluateConfig)


def _result_files(config: EvaluateConfig, usual: EvaluateConfig) -> set[str]:
    tasks = loaded("stamm.evaluate.registry").load_tasks(config.tasks, config.task_folder)
    result_file = loaded("stamm.evaluate.job").result_file
    return {result_file(task, config, usual) for task in tasks}


def _results(folder: Path, named: set[str]) -> tuple[TaskFile, ...]:
    return tuple(result for result in read_task_files(folder, ()) if result.task in named)


def _evaluate(model: Path, folder: Path, config: EvaluateConfig, usual: EvaluateConfig) -> None:
    run_job = loaded("stamm.evaluate.job").run
    if not is_hub_folder(model):
        inputs = evaluation_inputs(model)
        with writing("evaluate", run_of_arm(model), model, folder, alone=False) as console:
            run_job(config, Workspace(folder=folder, inputs=inputs, progress=console), usual)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(Console()) as console:
        for sentence in loaded("stamm.models.loading").unused_of(model)[1]:
            console.log(sentence)
        kept = tuple(name for name in config.tasks if name != "held_out")
        config = replace(config, tasks=kept or config.tasks)
        inputs = {"model": model, "tokenizer": model}
        run_job(config, Workspace(folder=folder, inputs=inputs, progress=console), usual)


def _curves(
    config: EvaluateConfig, usual: EvaluateConfig, arms: Mapping[Path, Path], dry_run: bool
) -> Evaluation:
    """Evaluate every checkpoint of every arm; one that is done is not repeated."""
    folders: dict[Path, Path] = {}
    for arm in arms:
        for path in checkpoints_of(arm):
            folder = folders[path] = arm / CURVES / path.name
            if not dry_run:
                _evaluate_once(config, usual, arm, path, folder)
    if dry_run:
        return Evaluation(folders=folders, checkpoints=True)
    named = _result_files(config, usual)
    tasks = {path: _results(folder, named) for path, folder in folders.items()}
    return Evaluation(folders=folders, tasks=tasks, checkpoints=True)


def _evaluate_once(
    config: EvaluateConfig, usual: EvaluateConfig, arm: Path, path: Path, folder: Path
) -> None:
    """Evaluate a checkpoint, unless its results are of the same settings and weights."""
    identity = sha256_value([to_plain(config), sha256_file(path / STATE)])
    mark = folder / _DONE
    if mark.is_file() and mark.read_text(encoding="utf-8") == identity:
        return
    with writing("evaluate", run_of_arm(arm), arm, folder, alone=False) as console:
        _evaluate_checkpoint(config, usual, arm, path, folder, console)
    write_text(mark, identity)


def _evaluate_checkpoint(
    config: EvaluateConfig,
    usual: EvaluateConfig,
    arm: Path,
    path: Path,
    folder: Path,
    progress: Progress,
) -> None:
    inputs = evaluation_inputs(arm)
    checkpoint_model = loaded("stamm.engine.checkpoint").checkpoint_model
    model = checkpoint_model(arm / "model", path, inputs["tokenizer"])
    progress.log(f"{path.name}")
    workspace = Workspace(folder=folder, inputs=inputs, progress=progress)
    loaded("stamm.evaluate.job").evaluate_model(config, workspace, model, usual)
