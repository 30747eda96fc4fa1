"""The step of a recipe that evaluates a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stamm.evaluate.config import EvaluateConfig, check_step, task_inputs
from stamm.runs.job import Step


def evaluate_step(
    name: str,
    folder: str,
    model: str,
    config: EvaluateConfig,
    *,
    tokenizer: str = "tokenizer",
    pack: str = "pack",
    external: Mapping[str, Path] | None = None,
) -> Step:
    """Held-out loss and other tasks of the model in a folder.

    name       of the step, "evaluate.xielu"
    external   further files that identify the inputs

    Raises   ConfigError for a setting that none of the tasks reads
    """
    check_step(config)
    return Step(
        name=name,
        job="evaluate",
        config=config,
        folder=folder,
        inputs={"model": model, "tokenizer": tokenizer, "pack": pack},
        external={**(external or {}), **task_inputs(config.tasks, config.task_folder)},
        outputs=(".",),
    )
