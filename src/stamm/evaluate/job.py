"""Evaluate one trained decoder on a list of tasks.

Reads    model (a stored decoder), tokenizer; pack (a packed corpus), where there is one
Leaves   for each task NAME.json and, if the task has items, NAME_<items>.jsonl: held_out.json,
         held_out_documents.jsonl, blimp.json, blimp_pairs.jsonl

A task from a file resumes behind the items that a killed evaluation scored, and is not repeated where
its result depends on the same data, weights and settings.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from stamm.base.errors import ConfigError, DataError
from stamm.base.files import write_text
from stamm.base.schema import read_record, record, write_record
from stamm.base.user_code import guarded
from stamm.evaluate.config import BUILT_IN_TASKS, EvaluateConfig
from stamm.evaluate.file_task import FileTask
from stamm.evaluate.registry import load_tasks
from stamm.evaluate.task import EvaluationTask, TaskContext, TaskResult
from stamm.evaluate.text_model import TextModel, load_tokenizer, text_model
from stamm.models.decoder import check_finite
from stamm.models.determinism import set_determinism
from stamm.models.serialization import load_decoder
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import KEY, set_aside, weights_sha256
from stamm.runs.schemas.evaluation import BlimpFile, HeldOutFile, TaskFile

_FILES = {"held_out": HeldOutFile, "blimp": BlimpFile}
OUTPUTS = ("held_out.json", "held_out_documents.jsonl", "blimp.json", "blimp_pairs.jsonl")
_OWN_KEYS = ("schema", "task", "num_items", "metrics", KEY)


def run(config: EvaluateConfig, workspace: Workspace) -> None:
    """Evaluate the stored decoder, in the Apertus chat format where `chat` asks for one.

    Raises   as `evaluate_model`; ConfigError for checkpoints="all", which `stamm evaluate` does.
    """
    if config.checkpoints == "all":
        raise ConfigError(
            "checkpoints = all evaluates a finished run",
            where="evaluate.checkpoints",
            fix="Run `stamm evaluate RUN checkpoints=all` after it",
        )
    set_determinism(config.threads)
    folder = workspace.inputs["tokenizer"]
    decoder = load_decoder(workspace.inputs["model"])
    sha256 = weights_sha256(workspace.inputs["model"])
    evaluate_model(config, workspace, text_model(decoder, load_tokenizer(folder), folder, sha256))


def evaluate_model(config: EvaluateConfig, workspace: Workspace, model: TextModel) -> list[str]:
    """Run every task, then write all results; the names of the tasks.

    Nothing is written before all tasks are done, so a failure keeps the earlier results; those of
    other weights are moved to a folder beside.

    Raises   DataError for weights that are not finite; as the tasks.
    """
    tasks = load_tasks(config.tasks, config.task_folder)
    set_determinism(config.threads)
    check_finite(model.decoder)
    context = TaskContext(
        config=config,
        pack=workspace.inputs.get("pack"),
        progress=workspace.progress,
        model=model,
        folder=workspace.folder,
    )
    results = [
        (task.name, _run_task(task, context)) for task in tasks if not _is_done(task, context)
    ]
    set_aside(workspace.folder, model.sha256)
    for name, result in results:
        items = workspace.folder / f"{name}_{result.item_label}.jsonl"
        if result.item_file is not None:
            result.item_file.finish(items)
        elif result.items:
            lines = [json.dumps(dict(item), ensure_ascii=False) + "\n" for item in result.items]
            write_text(items, "".join(lines))
        kind = _FILES.get(name, TaskFile)
        write_record(workspace.folder / f"{name}.json", kind, _content(name, result, model.sha256))
    return [task.name for task in tasks]


def _is_done(task: EvaluationTask, context: TaskContext) -> bool:
    """Whether the results of a task from a file depend on what they would depend on now."""
    if not isinstance(task, FileTask):
        return False
    written = context.folder / f"{task.name}.json"
    if not (written.is_file() and (context.folder / f"{task.name}_items.jsonl").is_file()):
        return False
    try:
        stored = read_record(TaskFile, written)
    except DataError:
        return False
    return stored.identity == task.identity(context)


def _content(name: str, result: TaskResult, sha256: str) -> dict[str, Any]:
    return {
        "task": name,
        KEY: sha256,
        "num_items": result.num_items,
        "metrics": {name: metric.plain() for name, metric in result.metrics.items()},
        **result.details,
    }


def _run_task(task: EvaluationTask, context: TaskContext) -> TaskResult:
    """The task's result; an exception of a user's task is reported with its file and line."""
    decoder: Any = context.model.decoder
    tokenizer: Any = context.model.tokenizer
    if task.name in BUILT_IN_TASKS or isinstance(task, FileTask):
        return task.run(decoder, tokenizer, context)
    file = Path(inspect.getfile(type(task)))
    result = guarded(file, lambda: task.run(decoder, tokenizer, context))
    if not isinstance(result, TaskResult):
        raise ConfigError(
            f"{type(task).__name__}.run returned {type(result).__name__}, not a TaskResult",
            where=str(file),
            fix="Return stamm.evaluate.task.TaskResult",
        )
    guarded(file, lambda: _check_result(result))
    return result


def _check_result(result: TaskResult) -> None:
    """Raise ValueError or TypeError for a result that cannot be written."""
    if not result.metrics or not result.item_label.isidentifier():
        raise ValueError("a TaskResult needs metrics, and an item_label of letters, digits and _")
    taken = sorted(set(_OWN_KEYS) & set(result.details))
    if taken:
        raise ValueError(f"TaskResult.details uses the reserved key {taken[0]!r}")
    record(TaskFile, _content("", result, ""))
    json.dumps([metric.plain() for metric in result.metrics.values()])
    json.dumps([dict(item) for item in result.items])
    json.dumps(dict(result.details))
