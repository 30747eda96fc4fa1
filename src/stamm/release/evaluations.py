"""Results of evaluation for the Hub: `model-index` of a model card, and `.eval_results` files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from stamm.base.errors import visible
from stamm.evaluate.records import MetricValue, TaskFile

HUB_DATASETS = {"blimp": ("nyu-mll/blimp", 67_000), "blimp_full": ("nyu-mll/blimp", 67_000)}
"""Dataset of the Hub that a task reads its items from, and how many items that has."""
_LONGEST = 100


def dataset_name(task: str, items: int) -> str:
    """Name of the data behind a result of `task` over `items` items; a part of a dataset is named as one.

    "blimp: 1,005 of 67,000 items of nyu-mll/blimp"
    """
    name = visible(task, _LONGEST)
    if task not in HUB_DATASETS:
        return name
    dataset, whole = HUB_DATASETS[task]
    return f"{name}: {items:,} of {whole:,} items of {dataset}" if items != whole else dataset


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
        items = tasks[task].num_items
        whole = task in HUB_DATASETS and items == HUB_DATASETS[task][1]
        result = results.setdefault(
            task,
            {
                "task": {"type": "text-generation", "name": "Text generation"},
                "dataset": {
                    "name": dataset_name(task, items),
                    "type": HUB_DATASETS[task][0] if whole else "stamm",
                    "args": {"num_items": items},
                },
                "metrics": [],
            },
        )
        result["metrics"].append({"type": metric, "value": value.value, "name": metric})
    return [{"name": name, "results": list(results.values())}] if results else []


def eval_results(tasks: Mapping[str, TaskFile]) -> dict[str, list[dict[str, Any]]]:
    """Entries of .eval_results/TASK.yaml by task: the tasks whose items are a whole dataset of the Hub.

    The Hub lists an entry beside others' results on that dataset and has no field for a part of it:
    results on parts, and on other data, are in `model-index` alone.
    """
    return {
        task: [
            {
                "dataset": {"id": HUB_DATASETS[task][0], "task_id": "default"},
                "value": value.value,
                "notes": f"{metric} over all {tasks[task].num_items:,} items, measured by stamm",
            }
        ]
        for task, metric, value in finite_metrics(tasks)
        if task in HUB_DATASETS and tasks[task].num_items == HUB_DATASETS[task][1]
    }
