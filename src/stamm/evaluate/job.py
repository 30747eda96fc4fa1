"""Evaluate one trained decoder on a list of tasks.

Reads    model (a stored decoder), tokenizer; pack (a packed corpus), where there is one
Leaves   for each task NAME.json and, if the task has items, NAME_<items>.jsonl: held_out.json,
         held_out_documents.jsonl, blimp.json, blimp_pairs.jsonl

A task from a file resumes behind the items that a killed evaluation scored, and is not repeated where
its result depends on the same data, weights and settings.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stamm.base.cache_folder import file_lock
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import write_text
from stamm.base.schema import read_record, record, write_record
from stamm.base.user_code import guarded
from stamm.evaluate.config import (
    BUILT_IN_READS,
    BUILT_IN_TASKS,
    UNREAD,
    EvaluateConfig,
    check_settings_read,
    check_step,
)
from stamm.evaluate.file_task import FileTask, result_name
from stamm.evaluate.harness_task import HarnessTask
from stamm.evaluate.registry import load_tasks
from stamm.evaluate.task import EvaluationTask, TaskContext, TaskResult
from stamm.evaluate.text_model import TextModel, load_tokenizer, text_model
from stamm.models.decoder import check_finite
from stamm.models.determinism import set_determinism
from stamm.models.serialization import load_decoder
from stamm.runs.command_receipts import writing_alone
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import KEY, set_aside, weights_sha256
from stamm.runs.schemas.evaluation import BlimpFile, HeldOutFile, TaskFile

_FILES = {"held_out": HeldOutFile, "blimp": BlimpFile}
OUTPUTS = ("held_out.json", "held_out_documents.jsonl", "blimp.json", "blimp_pairs.jsonl")
_SHORT = {"blimp_pairs_per_paradigm": "pairs"}
_OWN_KEYS = ("schema", "task", "num_items", "metrics", KEY)


def run(config: EvaluateConfig, workspace: Workspace, usual: EvaluateConfig | None = None) -> None:
    """Evaluate the stored decoder, in the Apertus chat format where `chat` asks for one.

    usual   as of `evaluate_model`

    Raises   as `evaluate_model`; ConfigError for checkpoints="all", which `stamm evaluate` does.
    """
    check_step(config)
    set_determinism(config.threads)
    folder = workspace.inputs["tokenizer"]
    decoder = load_decoder(workspace.inputs["model"])
    sha256 = weights_sha256(workspace.inputs["model"])
    model = text_model(decoder, load_tokenizer(folder), folder, sha256)
    evaluate_model(config, workspace, model, usual)


def evaluate_model(
    config: EvaluateConfig,
    workspace: Workspace,
    model: TextModel,
    usual: EvaluateConfig | None = None,
) -> list[str]:
    """Run every task, then write all results; the names of their files.

    usual   settings of the built-in tasks that are not in the names of their files; None: `config`

    Nothing is written before all tasks are done, so a failure keeps the earlier results; those of
    other weights are moved to a folder beside.

    Raises   DataError for weights that are not finite; ConfigError for a setting that none of the tasks
             uses; as the tasks.
    """
    tasks = load_tasks(config.tasks, config.task_folder)
    check_settings_used(config, tasks, usual or config)
    names = [result_file(task, config, usual or config) for task in tasks]
    set_determinism(config.threads)
    check_finite(model.decoder)
    context = TaskContext(
        config=config,
        pack=workspace.inputs.get("pack"),
        progress=workspace.progress,
        model=model,
        folder=workspace.folder,
    )
    with contextlib.ExitStack() as locks:
        for name in names:  # other tasks may be evaluated at the same time
            locks.enter_context(writing_alone(workspace.folder, name))
        results = [
            (task.name, name, _run_task(task, context))
            for task, name in zip(tasks, names, strict=True)
            if not _is_done(task, name, context)
        ]
        with file_lock(workspace.folder / ".set_aside.lock"):
            set_aside(workspace.folder, model.sha256)
        for task_name, name, result in results:
            _write(result, workspace.folder, name, model, _FILES.get(task_name, TaskFile))
    return names


def _write(result: TaskResult, folder: Path, name: str, model: TextModel, kind: type[Any]) -> None:
    items = folder / f"{name}_{result.item_label}.jsonl"
    if result.item_file is not None:
        result.item_file.finish(items)
    elif result.items:
        lines = [json.dumps(dict(item), ensure_ascii=False) + "\n" for item in result.items]
        write_text(items, "".join(lines))
    write_record(folder / f"{name}.json", kind, _content(name, result, model.sha256))


def result_file(task: EvaluationTask, config: EvaluateConfig, usual: EvaluateConfig) -> str:
    """The name of a task's result files; settings that change the result are in it.

    usual   settings of the built-in tasks that are not
    """
    if isinstance(task, FileTask | HarnessTask):
        return result_name(task.name, task.settings(config))
    if task.name not in BUILT_IN_TASKS:
        seed = config.shots_seed if config.shots else None
        own = {"shots": config.shots, "shots_seed": seed, "chat": config.chat}
        return result_name(task.name, {**own, "limit": config.limit})
    keys = ("blimp_pairs_per_paradigm",) if task.name == "blimp" else ("context", "overlap")
    changed = [key for key in keys if getattr(config, key) != getattr(usual, key)]
    parts = (f"_{_SHORT.get(key, key)}{getattr(config, key) or ''}" for key in changed)
    return task.name + "".join(parts)


def check_settings_used(
    config: EvaluateConfig, tasks: Sequence[EvaluationTask], usual: EvaluateConfig
) -> None:
    """Check that a task reads each setting that is not as in `usual`; shots, chat and rolling always.

    Raises   ConfigError for one that no task reads, for a limit of a built-in task, and for a chat format
             of a YAML task.
    """
    if config.chat and any(isinstance(task, HarnessTask) for task in tasks):
        raise ConfigError(
            "chat = True is not supported for YAML tasks of lm-evaluation-harness: their text never "
            "becomes control tokens",
            where="evaluate.chat",
            fix="Set chat=false for them, or describe the task in JSON (docs/evaluation.md)",
        )
    read: set[str] = set()
    for task in tasks:
        if isinstance(task, FileTask | HarnessTask):
            read.update(task.reads(config))
        else:  # a user's own may read everything
            read.update(BUILT_IN_READS.get(task.name, UNREAD))
    check_settings_read(config, read, ", ".join(task.name for task in tasks), usual)


def _is_done(task: EvaluationTask, name: str, context: TaskContext) -> bool:
    """Whether the results of a task from a file depend on what they would depend on now."""
    if not isinstance(task, FileTask):
        return False
    written = context.folder / f"{name}.json"
    if not (written.is_file() and (context.folder / f"{name}_items.jsonl").is_file()):
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
    if task.name in BUILT_IN_TASKS or isinstance(task, FileTask | HarnessTask):
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
