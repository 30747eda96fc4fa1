"""Evaluate one trained decoder on a list of tasks.

Reads    model (a stored decoder), pack (a packed corpus), tokenizer
Leaves   for each task NAME.json and, if the task has items, NAME_<items>.jsonl: held_out.json,
         held_out_documents.jsonl, blimp.json, blimp_pairs.jsonl
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from stamm.base.errors import ConfigError
from stamm.base.files import write_text
from stamm.base.schema import record, write_record
from stamm.base.user_code import guarded
from stamm.corpus.tokenizer.tokenizer import Tokenizer
from stamm.evaluate.config import BUILT_IN_TASKS, EvaluateConfig
from stamm.evaluate.registry import load_tasks
from stamm.evaluate.task import EvaluationTask, TaskContext, TaskResult
from stamm.models.decoder import Decoder
from stamm.models.determinism import set_determinism
from stamm.models.serialization import load_decoder
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import KEY, set_aside, weights_sha256
from stamm.runs.schemas.evaluation import BlimpFile, HeldOutFile, TaskFile

_FILES = {"held_out": HeldOutFile, "blimp": BlimpFile}
OUTPUTS = ("held_out.json", "held_out_documents.jsonl", "blimp.json", "blimp_pairs.jsonl")
_OWN_KEYS = ("schema", "task", "num_items", "metrics", KEY)


def run(config: EvaluateConfig, workspace: Workspace) -> None:
    """Run every task, then write all results.

    Nothing is written before all tasks are done, so a failure keeps the earlier results; those of
    other weights are moved to a folder beside.
    """
    tasks = load_tasks(config.tasks)
    set_determinism(config.threads)
    decoder = load_decoder(workspace.inputs["model"])
    tokenizer = Tokenizer.load(workspace.inputs["tokenizer"])
    context = TaskContext(config=config, pack=workspace.inputs["pack"], progress=workspace.progress)
    results = [(task.name, _run_task(task, decoder, tokenizer, context)) for task in tasks]
    sha256 = weights_sha256(workspace.inputs["model"])
    set_aside(workspace.folder, sha256)
    for name, result in results:
        if result.items:
            lines = [json.dumps(dict(item), ensure_ascii=False) + "\n" for item in result.items]
            write_text(workspace.folder / f"{name}_{result.item_label}.jsonl", "".join(lines))
        kind = _FILES.get(name, TaskFile)
        write_record(workspace.folder / f"{name}.json", kind, _content(name, result, sha256))


def _content(name: str, result: TaskResult, sha256: str) -> dict[str, Any]:
    return {
        "task": name,
        KEY: sha256,
        "num_items": result.num_items,
        "metrics": {name: metric.plain() for name, metric in result.metrics.items()},
        **result.details,
    }


def _run_task(
    task: EvaluationTask, decoder: Decoder, tokenizer: Tokenizer, context: TaskContext
) -> TaskResult:
    """The task's result; an exception of a user's task is reported with its file and line."""
    if task.name in BUILT_IN_TASKS:
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
