"""A YAML task of lm-evaluation-harness, evaluated offline with stamm's scoring.

The data of a task are files; a data set of the Hub is used only from the local cache. Functions that
a YAML file names (`!function`) are the user's code.

Checked  tests/unit/evaluate/test_harness.py
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stamm.base.errors import ConfigError, visible
from stamm.base.user_code import load_reference
from stamm.corpus.tokenizer.tokenizer import Tokenizer
from stamm.evaluate.task import TaskContext, TaskMetric, TaskResult
from stamm.models.decoder import Decoder

_MODEL = "stamm.evaluate.harness_model:HarnessModel"  # imports lm_eval when it is loaded
# Of the harness' results: the machine, the folder that it was called in, and the time.
_MACHINE = ("pretty_env_info", "config", "git_hash", "upper_git_hash", "date")
_NAME = re.compile(r"^(?:task|group):\s*[\"']?([^\s\"'#]+)", re.MULTILINE)
_UNNAMED = re.compile(r"[^a-z0-9_]+")
_UNKNOWN = "unknown, because lm-evaluation-harness reads the items"


class HarnessTask:
    """The task or group of a YAML file; other tasks of its folder can be named in it."""

    def __init__(self, file: Path) -> None:
        if importlib.util.find_spec("lm_eval") is None:
            raise ConfigError(
                f"{file} is a task of lm-evaluation-harness, and lm_eval is not installed",
                where="evaluate.tasks",
                fix="Run: pip install 'stamm[lm-eval]'",
            )
        self._file, self._task = file, _task_of(file)
        self.name = _UNNAMED.sub("_", self._task.lower()).strip("_") or "harness"

    def run(self, model: Decoder, tokenizer: Tokenizer, context: TaskContext) -> TaskResult:
        """Evaluate by the harness; `lm_eval` of the result is its own JSON, without machine and time.

        Raises   ConfigError when the harness refuses the task.
        """
        import datasets
        import lm_eval
        from huggingface_hub import constants
        from lm_eval.tasks import TaskManager

        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
        harness_model: Any = load_reference(_MODEL, None, "a model of lm_eval")
        config = context.config
        try:
            found = lm_eval.simple_evaluate(
                model=harness_model(context.model, config.batch_tokens),
                tasks=[self._task],
                task_manager=TaskManager(
                    include_path=str(self._file.parent), include_defaults=False
                ),
                num_fewshot=config.shots or None,
                fewshot_random_seed=config.shots_seed,
                log_samples=True,
            )
        except (ValueError, KeyError, OSError, ImportError, TypeError) as error:
            raise ConfigError(
                f"lm_eval refuses task {visible(self._task)}: {visible(str(error))[:500]}",
                where=str(self._file),
                fix="Correct the task; its data must be local files (dataset_path: json, data_files)",
            ) from error
        return _result(self._task, json.loads(json.dumps(found, default=str)))


def _task_of(file: Path) -> str:
    """The task or group that a YAML file defines; it is not parsed, because of its own tags."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", where="evaluate.tasks") from error
    match = _NAME.search(text)
    if match is None:
        raise ConfigError(
            f"{file} names no task", where="evaluate.tasks", fix="Add a line `task: NAME`"
        )
    return match[1]


def _result(task: str, found: Mapping[str, Any]) -> TaskResult:
    samples = found["samples"]
    metrics = {}
    for name, values in found["results"].items():
        for key, value in values.items():
            metric, comma, filter_name = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, float | int):
                continue
            error = values.get(f"{metric}_stderr,{filter_name}")
            label = metric if filter_name == "none" else f"{metric} {filter_name}"
            metrics[label if name == task else f"{name} {label}"] = TaskMetric(
                value=float(value), standard_error=error if isinstance(error, float) else None
            )
    if not metrics:
        raise ConfigError(f"lm_eval measured nothing in task {visible(task)}", where=task)
    items = [{"task": name, **sample} for name, rows in samples.items() for sample in rows]
    kept = {k: v for k, v in found.items() if k not in ("samples", *_MACHINE)}
    return TaskResult(
        metrics=metrics,
        num_items=len({(item["task"], item["doc_id"]) for item in items}),
        items=items,
        details={"kind": "lm_eval", "lm_eval": kept, "contamination": _UNKNOWN},
    )
