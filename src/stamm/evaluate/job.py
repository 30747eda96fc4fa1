"""Evaluate one trained decoder on a list of tasks.

Reads    model (a stored decoder or a Hugging Face folder), tokenizer; pack (a packed corpus), where there is one
Leaves   for each task NAME.json and, if the task has items, NAME_<items>.jsonl: held_out.json,
         held_out_documents.jsonl, blimp.json, blimp_pairs.jsonl

A task from a file resumes behind the items that a killed evaluation scored, and is not repeated where
its result depends on the same data, weights and settings.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stamm.base.cache_folder import file_lock
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import write_text
from stamm.base.schema import read_record, record, write_record
from stamm.base.user_code import guarded
from stamm.evaluate.config import (
    BUILT_IN_TASKS,
    UNREAD,
    EvaluateConfig,
    check_limit,
    check_settings_read,
    check_step,
)
from stamm.evaluate.records import TaskFile
from stamm.evaluate.registry import load_tasks
from stamm.evaluate.task import (
    EvaluationTask,
    IdentifiedTask,
    RecordTask,
    SettingsTask,
    TaskContext,
    TaskResult,
    file_task_name,
)
from stamm.models.decoder import check_finite
from stamm.models.determinism import set_determinism
from stamm.models.loading import OpenModel, open_model
from stamm.models.model_source import ModelSource
from stamm.runs.command_receipts import writing_alone
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import KEY, set_aside

_RESULT_NAME = re.compile(r"[A-Za-z0-9_]+")
_OWN_KEYS = ("schema", "task", "num_items", "metrics", KEY)


def run(config: EvaluateConfig, workspace: Workspace, usual: EvaluateConfig | None = None) -> None:
    """Evaluate the model of inputs["model"], in its chat format where `chat` asks for one.

    usual   as of `evaluate_model`

    Raises   as `evaluate_model`; ConfigError for checkpoints="all", which `stamm evaluate` does.
    """
    check_step(config)
    set_determinism(config.threads)
    inputs = workspace.inputs
    source = ModelSource(model=inputs["model"], tokenizer=inputs["tokenizer"])
    evaluate_model(config, workspace, open_model(source, chat=config.chat), usual)


def evaluate_model(
    config: EvaluateConfig,
    workspace: Workspace,
    model: OpenModel,
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
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"two tasks would write {twice[0]}.json",
            where="evaluate.tasks",
            fix="Rename one of them",
        )
    set_determinism(config.threads)
    check_finite(dict(model.decoder.named_parameters()))
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
            (task, name, _run_task(task, context))
            for task, name in zip(tasks, names, strict=True)
            if not _is_done(task, name, context)
        ]
        with file_lock(workspace.folder / ".set_aside.lock"):
            set_aside(workspace.folder, model.sha256)
        for task, name, result in results:
            _write(result, workspace.folder, name, model, _record_class(task))
    return names


def _write(result: TaskResult, folder: Path, name: str, model: OpenModel, kind: type[Any]) -> None:
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
    if not isinstance(task, SettingsTask):
        seed = config.shots_seed if config.shots else None
        own = {"shots": config.shots, "shots_seed": seed, "chat": config.chat}
        return file_task_name(task.name, {**own, "limit": config.limit})
    name = _guarded(task, lambda: task.result_name(config, usual))
    is_own = isinstance(name, str) and (name == task.name or name.startswith(f"{task.name}_"))
    if not (is_own and _RESULT_NAME.fullmatch(name)):
        raise ConfigError(
            f"{type(task).__name__}.result_name returned {name!r}, which cannot name result files of "
            f"{task.name}",
            where="evaluate.tasks",
            fix=f"Return {task.name}, or {task.name}_ and letters, digits and _",
        )
    return str(name)


def check_settings_used(
    config: EvaluateConfig, tasks: Sequence[EvaluationTask], usual: EvaluateConfig
) -> None:
    """Check that a task reads each setting that is not as in `usual`; shots, chat and rolling always.

    Raises   ConfigError for one that no task reads, and for a limit that one of them does not read.
    """
    read: set[str] = set()
    for task in tasks:
        if not isinstance(task, SettingsTask):
            read.update(UNREAD)
            continue
        own = _guarded(task, functools.partial(task.reads, config))
        read.update(own)
        if "limit" not in own:
            built_in = task.name in BUILT_IN_TASKS
            check_limit(config, f"{task.name} {'is built in' if built_in else 'has none'}")
    check_settings_read(config, read, ", ".join(task.name for task in tasks), usual)


def _is_done(task: EvaluationTask, name: str, context: TaskContext) -> bool:
    """Whether the results of a task are there, of these weights, and depend on what they would depend on now."""
    if not isinstance(task, IdentifiedTask):
        return False
    written = context.folder / f"{name}.json"
    if not (written.is_file() and (context.folder / f"{name}_items.jsonl").is_file()):
        return False
    try:
        stored = read_record(TaskFile, written)
    except DataError:
        return False
    if (
        stored.model_sha256 != context.model.sha256
    ):  # these are set aside, so they must be made again
        return False
    return bool(stored.identity == _guarded(task, lambda: task.identity(context)))


def _record_class(task: EvaluationTask) -> type[TaskFile]:
    return task.record if isinstance(task, RecordTask) else TaskFile


def _guarded(task: EvaluationTask, work: Callable[[], Any]) -> Any:
    """The result of `work`; an exception of a user's task is reported with its file and line."""
    if type(task).__module__.startswith("stamm."):
        return work()
    return guarded(Path(inspect.getfile(type(task))), work)


def _content(name: str, result: TaskResult, sha256: str) -> dict[str, Any]:
    return {
        "task": name,
        KEY: sha256,
        "num_items": result.num_items,
        "metrics": {name: metric.plain() for name, metric in result.metrics.items()},
        **result.details,
    }


def _run_task(task: EvaluationTask, context: TaskContext) -> TaskResult:
    """The task's result, which can be written."""
    decoder: Any = context.model.decoder
    tokenizer: Any = context.model.tokenizer
    result = _guarded(task, lambda: task.run(decoder, tokenizer, context))
    if not isinstance(result, TaskResult):
        raise ConfigError(
            f"{type(task).__name__}.run returned {type(result).__name__}, not a TaskResult",
            where=inspect.getfile(type(task)),
            fix="Return stamm.evaluate.task.TaskResult",
        )
    _guarded(task, lambda: _check_result(result, _record_class(task)))
    return result


def _check_result(result: TaskResult, kind: type[TaskFile]) -> None:
    """Raise ValueError or TypeError for a result that cannot be written."""
    if not result.metrics or not result.item_label.isidentifier():
        raise ValueError("a TaskResult needs metrics, and an item_label of letters, digits and _")
    taken = sorted(set(_OWN_KEYS) & set(result.details))
    if taken:
        raise ValueError(f"TaskResult.details uses the reserved key {taken[0]!r}")
    record(kind, _content("", result, ""))
    json.dumps([metric.plain() for metric in result.metrics.values()])
    json.dumps([dict(item) for item in result.items])
    json.dumps(dict(result.details))
