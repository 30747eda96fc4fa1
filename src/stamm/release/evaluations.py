"""Results of evaluation for the Hub: `model-index` of a model card, and `.eval_results` files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from stamm.base.errors import visible
from stamm.runs.schemas.evaluation import MetricValue, TaskFile

HUB_DATASETS = {"blimp": "nyu-mll/blimp"}
"""Dataset of the Hub that a built-in task reads its items from."""
_LONGEST = 100


def finite_metrics(tasks: Mapping[str, TaskFile]) -> Iterator[tuple[str, str, MetricValue]]:
    """(task, metric, value) of all finite metrics; names made harmless."""
    for task, result in tasks.items():
        for name, metric in result.metrics.items():
            if math.isfinite(metric.value):
                yield visible(task, _LONGEST), visible(name, _LONGEST), metric


def model_index(name: str, tasks: Mapping[str, TaskFile]) -> list[dict[str, Any]]:
    """The value of `model-index`: a result for each task; [] without results."""
    results: dict[str, dict[str, Any]] = {}
    for task, metric, value in finite_metrics(tasks):
        result = results.setdefault(
            task,
            {
                "task": {"type": "text-generation", "name": "Text generation"},
                "dataset": {"name": task, "type": HUB_DATASETS.get(task, "stamm")},
                "metrics": [],
            },
        )
        result["metrics"].append({"type": metric, "value": value.value, "name": metric})
    return [{"name": name, "results": list(results.values())}] if results else []


def eval_results(tasks: Mapping[str, TaskFile]) -> dict[str, list[dict[str, Any]]]:
    """Entries of .eval_results/TASK.yaml by task: the tasks whose items are a dataset of the Hub.

    The Hub takes no result on other data; those are in `model-index`.
    """
    return {
        task: [
            {
                "dataset": {"id": HUB_DATASETS[task], "task_id": "default"},
                "value": value.value,
                "notes": f"{metric} over {tasks[task].num_items} items, measured by stamm",
            }
        ]
        for task, metric, value in finite_metrics(tasks)
        if task in HUB_DATASETS
    }
