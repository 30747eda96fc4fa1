"""The protocol of an evaluation task, and what a task returns.

A task is a class with a `name` and a method `run`; it may be a built-in (stamm.evaluate.registry)
or a user's own, "mine.py:MyTask". What else a task may have is a protocol of its own here: settings,
an identity, a record. Tutorial: docs/extending/evaluation_task.md
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from stamm.base.console import Progress
from stamm.base.user_code import is_reference, load_named
from stamm.evaluate.config import BUILT_IN_TASKS, EvaluateConfig
from stamm.evaluate.records import TaskFile
from stamm.statistics.clustered_ratio import ClusteredRatio
from stamm.statistics.student_t import NORMAL_80

if TYPE_CHECKING:  # a recipe checks the names of tasks without loading torch
    from stamm.evaluate.item_file import ItemFile
    from stamm.models.decoder import Decoder
    from stamm.models.loading import OpenModel
    from stamm.tokenizer.tokenizer import Tokenizer

NORMAL_95 = 1.96
"""P(|Z| <= 1.96) = 0.95 for a standard normal Z."""


@dataclass(frozen=True, kw_only=True)
class TaskMetric:
    """One metric of a task.

    value            the estimate
    standard_error   of the value; None when unknown
    interval         95 % confidence interval; None: value +- 1.96 standard errors
    chance           value of a model that guesses; None when there is no such value
    """

    value: float
    standard_error: float | None = None
    interval: tuple[float, float] | None = None
    chance: float | None = None

    @property
    def interval_95(self) -> tuple[float, float] | None:
        """The 95 % confidence interval, given or from the standard error."""
        if self.interval is not None or self.standard_error is None:
            return self.interval
        half = NORMAL_95 * self.standard_error
        return self.value - half, self.value + half

    @property
    def smallest_difference(self) -> float | None:
        """The difference from chance that is shown with power 0.8; None without a chance or an error.

        Half of the interval, and the quantile of power: 0.84 standard errors.
        """
        interval = self.interval_95
        if self.chance is None or interval is None or not self.standard_error:
            return None
        return (interval[1] - interval[0]) / 2 + NORMAL_80 * self.standard_error

    def plain(self) -> dict[str, Any]:
        """The metric as JSON values."""
        interval = self.interval_95
        return {
            "value": self.value,
            "standard_error": self.standard_error,
            "interval_95": None if interval is None else list(interval),
            "chance": self.chance,
            "smallest_difference_from_chance": self.smallest_difference,
        }


def mean_metric(values: Sequence[float], chance: float | None = None) -> TaskMetric:
    """Mean of one value per item, with standard error s / sqrt(n) and the interval of Student's t.

    Edge     one value has no standard error.
    Raises   ValueError for no values.
    """
    if not values:
        raise ValueError("the mean of no values is undefined")
    ratio = ClusteredRatio()
    for value in values:
        ratio.add(value)
    return ratio_metric(ratio, chance)


def ratio_metric(ratio: ClusteredRatio, chance: float | None = None) -> TaskMetric:
    """The metric of a ratio over clusters of items, its interval by Student's t over clusters."""
    half = ratio.half_width
    return TaskMetric(
        value=ratio.value,
        standard_error=ratio.standard_error,
        interval=None if half is None else (ratio.value - half, ratio.value + half),
        chance=chance,
    )


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """Measurements of a task.

    metrics      by name ("accuracy"); the main one first
    num_items    items that the metrics are computed from
    items        one JSON object per item, written to NAME_<item_label>.jsonl, so that two models can
                 be compared item by item
    item_file    finished items on disk, instead of `items`
    item_label   plural noun of an item, in the file's name
    details      further JSON values of NAME.json
    """

    metrics: Mapping[str, TaskMetric]
    num_items: int
    items: Sequence[Mapping[str, Any]] = ()
    item_file: ItemFile | None = None
    item_label: str = "items"
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TaskContext:
    """Inputs of a task beside the model and the tokenizer.

    config     batch_tokens, context length and overlap
    pack       folder of the packed corpus (stamm.corpus.packed_dataset.PackedSplit); None without one
    progress   progress bar
    model      the model with its tokenizer, chat format and hash
    folder     where results are written
    """

    config: EvaluateConfig
    pack: Path | None
    progress: Progress
    model: OpenModel
    folder: Path


@runtime_checkable
class EvaluationTask(Protocol):
    """An evaluation task.

    name   of its result files, NAME.json and NAME_items.jsonl: lower-case letters, digits and _
    """

    name: str

    def run(self, model: Decoder, tokenizer: Tokenizer, context: TaskContext) -> TaskResult:
        """Measure `model`; nothing is written before all tasks have returned."""


@runtime_checkable
class SettingsTask(Protocol):
    """An evaluation task that does not read all settings; one without these methods may read them all."""

    def reads(self, config: EvaluateConfig) -> Collection[str]:
        """The settings that change this task: `limit` and those of `config.UNREAD`."""

    def result_name(self, config: EvaluateConfig, usual: EvaluateConfig) -> str:
        """The name of the result files: the task's name, "_" and the settings that change the result.

        usual   settings of the built-in tasks that are not in it
        """


@runtime_checkable
class IdentifiedTask(Protocol):
    """An evaluation task that is not repeated where its record, of the same weights, has the same `identity`.

    NAME_items.jsonl must be there, too: the task has items, and their label is "items".
    """

    def identity(self, context: TaskContext) -> str:
        """Hash of everything that the result depends on; TaskResult.details has it as "identity"."""


@runtime_checkable
class RecordTask(Protocol):
    """An evaluation task with a record class of its own for NAME.json."""

    record: type[TaskFile]


def file_task_name(name: str, settings: Mapping[str, Any]) -> str:
    """The name of the result files of a task that is asked with shots; settings other than the usual are in it."""
    shots, limit = settings["shots"], settings["limit"]
    seed = f"_seed{settings['shots_seed']}" if settings["shots_seed"] not in (None, 28) else ""
    parts = (
        f"_{shots}shot{seed}" if shots else "",
        "_chat" if settings["chat"] else "",
        "" if limit is None else f"_limit{limit}",
        "_harness" if settings.get("rolling") == "harness" else "",
    )
    return name + "".join(parts)


def changed_name(
    name: str, config: EvaluateConfig, usual: EvaluateConfig, keys: Mapping[str, str]
) -> str:
    """The name of the result files with the settings `keys` that are not as in `usual`.

    keys   what each is called in the name
    """
    changed = [key for key in keys if getattr(config, key) != getattr(usual, key)]
    return name + "".join(f"_{keys[key]}{getattr(config, key) or ''}" for key in changed)


def load_user_task(reference: str) -> EvaluationTask:
    """The user's task that `reference`, "mine.py:MyTask", names.

    Raises   ConfigError when it cannot be loaded or has no usable name.
    """
    return load_named(
        reference,
        EvaluationTask,
        "an evaluation task",
        names="its result files",
        where="evaluate.tasks",
        reserved=BUILT_IN_TASKS,
    )


def check_tasks(names: Sequence[str]) -> None:
    """Load the user's tasks among `names`, so that an error shows before training.

    Raises   ConfigError as `load_user_task` does.
    """
    for name in names:
        if is_reference(name):
            load_user_task(name)
