"""A YAML task of lm-evaluation-harness, evaluated offline with stamm's scoring.

The data of a task are files; a data set of the Hub is used only from the local cache. Functions that
a YAML file names (`!function`) are the user's code.

Checked  tests/unit/evaluate/test_harness.py
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from stamm.base.errors import ConfigError, DataError, StammError, visible
from stamm.base.files import sha256_bytes, sha256_value
from stamm.base.json_text import RepeatedKeyError, check_once
from stamm.base.known_keys import KnownKeys, RefusedKey
from stamm.base.schema import decode
from stamm.base.user_code import load_reference
from stamm.corpus.contamination.items import Item
from stamm.evaluate.blind import blind_credits, unigram_log_probs
from stamm.evaluate.config import EvaluateConfig, task_name
from stamm.evaluate.contamination import find_items
from stamm.evaluate.item_summary import ItemSummary
from stamm.evaluate.records import ItemLine
from stamm.evaluate.scoring import ScoringRequest, score_questions
from stamm.evaluate.task import TaskContext, TaskMetric, TaskResult, file_task_name
from stamm.models.decoder import Decoder
from stamm.statistics.clustered_ratio import CONFIDENCE
from stamm.statistics.student_t import t_quantile
from stamm.tokenizer.tokenizer import Tokenizer

_MODEL = "stamm.evaluate.harness_model:HarnessModel"  # imports lm_eval when it is loaded
# Of the harness' results: the machine, the folder that it was called in, and the time.
_MACHINE = ("pretty_env_info", "config", "git_hash", "upper_git_hash", "date")
_UNNAMED = re.compile(r"[^a-z0-9_]+")
_CHOICE, _WRITTEN = "multiple_choice", "generate_until"
YAML_KEYS = KnownKeys(
    reader="YAML tasks of lm-evaluation-harness",
    read=frozenset(
        (
            "task", "custom_dataset", "dataset_path", "dataset_name", "dataset_kwargs", "training_split",
            "validation_split", "test_split", "fewshot_split", "process_docs", "doc_to_text",
            "doc_to_target", "doc_to_choice", "process_results", "description", "target_delimiter",
            "fewshot_delimiter", "fewshot_config", "num_fewshot", "metric_list", "output_type",
            "generation_kwargs", "filter_list", "gen_prefix",
        )
    ),
    harmless=frozenset(
        ("task_alias", "tag", "metadata", "should_decontaminate", "doc_to_decontamination_query")
    ),
    refused={
        "repeats": RefusedKey(
            meaning="asks for several samples of each answer", neutral=(1,), fix="Set repeats: 1"
        ),
        "unsafe_code": RefusedKey(
            meaning="asks to run code that the model writes",
            neutral=(False,),
            fix="Write the completions and score them elsewhere (docs/evaluation.md, Generated code)",
        ),
        "use_prompt": RefusedKey(
            meaning="takes the prompt from promptsource", fix="Write it as doc_to_text"
        ),
        "doc_to_image": RefusedKey(meaning="asks about an image", fix="Leave the task out"),
        "doc_to_audio": RefusedKey(meaning="asks about a sound", fix="Leave the task out"),
    },
)  # fmt: skip
"""The fields of lm_eval 0.4.13's TaskConfig; the harness itself refuses others.

Contamination is counted for every task, so the keys for it change nothing.
"""


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

    def settings(self, config: EvaluateConfig) -> dict[str, Any]:
        """The settings that change how the items are asked, beside the model."""
        seed = config.shots_seed if config.shots else None
        return {
            "shots": config.shots, "shots_seed": seed, "chat": False, "limit": config.limit,
            "rolling": config.rolling,
        }  # fmt: skip

    def reads(self, config: EvaluateConfig) -> set[str]:
        """The settings, of those that not every task reads, that change this task.

        Raises   ConfigError for a chat format.
        """
        if config.chat:
            raise ConfigError(
                "chat = True is not supported for YAML tasks of lm-evaluation-harness: their text never "
                "becomes control tokens",
                where="evaluate.chat",
                fix="Set chat=false for them, or describe the task in JSON (docs/evaluation.md)",
            )
        return {"limit", "shots", "rolling"} | ({"shots_seed"} if config.shots else set())

    def result_name(self, config: EvaluateConfig, usual: EvaluateConfig) -> str:
        """The name of the result files, as `file_task_name`."""
        return file_task_name(self.name, self.settings(config))

    def run(self, model: Decoder, tokenizer: Tokenizer, context: TaskContext) -> TaskResult:
        """Evaluate by the harness; `lm_eval` of the result is its own JSON, without machine and time.

        Raises   ConfigError when the harness refuses the task, and for a key that is not honoured.
        """
        try:
            return self._run(context)
        except StammError as error:
            kind = ConfigError if isinstance(error, DataError) else type(error)  # of a key
            named = str(self._file) in error.line()
            where = ", ".join(filter(None, (error.where, "" if named else str(self._file))))
            raise kind(error.what, where=where, fix=error.fix) from error
        except Exception as error:
            said = " ".join(str(error).split()) or "no message"
            data = "; its data must be local files (dataset_path: json, data_files)"
            raise ConfigError(
                f"lm_eval refuses task {visible(self._task)}: {type(error).__name__}: "
                f"{visible(said)[:500]}",
                where=str(self._file),
                fix=f"Correct this YAML file{data if isinstance(error, OSError) else ''}",
            ) from error

    def _run(self, context: TaskContext) -> TaskResult:
        import datasets
        import lm_eval
        from huggingface_hub import constants
        from lm_eval.tasks import TaskManager

        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
        config = context.config
        _check_yaml(self._file)
        manager = TaskManager(include_path=str(self._file.parent), include_defaults=False)
        loaded = manager.load([self._spec(manager)])
        tasks: dict[str, Any] = loaded["tasks"]
        for name, task in tasks.items():
            keys = {key: getattr(task.config, key, None) for key in YAML_KEYS.refused}
            YAML_KEYS.check(keys, f"task {visible(name)} of {self._file}")
        group = loaded["groups"].get(self._task)
        harness_model: Any = load_reference(_MODEL, None, "a model of lm_eval")
        answering = harness_model(
            context.model, config.batch_tokens, begin_twice=config.rolling == "harness"
        )
        report = lm_eval.simple_evaluate(
            model=answering,
            tasks=list(tasks.values()) if group is None else [group],
            task_manager=manager,
            num_fewshot=config.shots or None,
            fewshot_random_seed=config.shots_seed,
            limit=config.limit,
            log_samples=True,
        )
        shots = {name: report["n-shot"].get(name, 0) for name in tasks}
        other = sorted(name for name, count in shots.items() if count != config.shots)
        if config.shots and other:
            raise ConfigError(
                f"shots = {config.shots}, and task {visible(other[0])} sets num_fewshot: "
                f"{shots[other[0]]}, which the harness keeps",
                where=str(self._file),
                fix="Set shots=0, or leave num_fewshot out of the file",
            )
        samples = report["samples"]
        report = json.loads(json.dumps(report, default=str))
        lines = _lines(tasks, samples, context)
        if group is not None:
            _weigh(lines, group, report["results"], self._file)
        for line in lines:
            line["truncated"] = (line["task"], line["doc_id"]) in answering.truncated
        return self._result(report, tasks, lines, context, max(shots.values()))

    def _spec(self, manager: Any) -> str:
        """The file for the harness to load; of a group its name, since it loads none by its path."""
        entry = manager.task_index.get(self._task)
        if entry is None or entry.kind.name != "GROUP":
            return str(self._file)
        if entry.yaml_path.resolve() != self._file.resolve():
            raise ConfigError(
                f"{self._file} and {entry.yaml_path} both define {visible(self._task)}",
                where="evaluate.tasks",
                fix="Rename one of them",
            )
        return self._task

    def _result(
        self,
        report: Mapping[str, Any],
        tasks: Mapping[str, Any],
        lines: list[dict[str, Any]],
        context: TaskContext,
        shots: int,
    ) -> TaskResult:
        metrics, means = (_metrics(self._task, report, lines), _means(self._task, report, lines))
        if not metrics:
            raise ConfigError(
                f"lm_eval measured nothing in task {visible(self._task)}", where=str(self._file)
            )
        main = next(iter(means), "")
        kinds = {task.OUTPUT_TYPE for task in tasks.values()}
        details: dict[str, Any] = {}
        if main:
            has_majority = kinds <= {_CHOICE, _WRITTEN}
            summary = ItemSummary(main, has_majority=has_majority)
            summary.read(lambda: _item_lines(lines, means))
            details = summary.details()
            own = summary.metrics()
            for name in means:
                guess = own[name].chance if name.startswith("acc") else None
                found_error = metrics[name].standard_error if len(tasks) > 1 else None
                metrics[name] = replace(own[name], chance=guess)
                if found_error is not None:  # the tasks of a group are fixed, their items are drawn
                    value = own[name].value
                    half = t_quantile(CONFIDENCE, len(lines) - len(tasks)) * found_error
                    metrics[name] = TaskMetric(
                        value=value,
                        standard_error=found_error,
                        interval=(value - half, value + half),
                        chance=guess,
                    )
            metrics = {main: metrics[main], **metrics}
            higher = report.get("higher_is_better", {}).get(self._task, {})
            details["lower_is_better"] = higher.get(main.split()[0]) is False
        own_examples = [
            name
            for name, task in tasks.items()
            if shots
            and not (
                task.fewshot_cfg.split
                or task.has_training_docs()
                or task.has_validation_docs()
                or task.fewshot_cfg.samples
            )
        ]
        if own_examples:
            said = (
                f"the examples of {', '.join(map(visible, own_examples))} are items that are asked"
            )
            details["warning"] = "; ".join(filter(None, (details.get("warning"), said)))
        kept = {k: v for k, v in report.items() if k not in ("samples", *_MACHINE)}
        settings = self.settings(context.config) | {"shots": shots}
        texts = (
            Item(set_name=self.name, item_id=str(line["line"]), texts=tuple(line.pop("asked")))
            for line in lines
        )
        return TaskResult(
            metrics=metrics,
            num_items=len(lines),
            details={
                "kind": "lm_eval",
                "metric": main,
                "data_sha256": sha256_value([line["doc_hash"] for line in lines]),
                "settings_sha256": sha256_value([settings, kept["configs"], kept["versions"]]),
                **settings,
                **({"stop_ids": sorted(context.model.stop_ids)} if _WRITTEN in kinds else {}),
                **details,
                **find_items(self.name, texts, context.pack).details(),
                "lm_eval": kept,
            },
            items=lines,
        )


def _task_of(file: Path) -> str:
    """The task or group that a YAML file defines.

    Raises   ConfigError without one.
    """
    try:
        name = task_name(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}", where="evaluate.tasks") from error
    if not name:
        raise ConfigError(
            f"{file} names no task", where="evaluate.tasks", fix="Add a line `task: NAME`"
        )
    return name


def _check_yaml(file: Path, seen: Set[Path] = frozenset()) -> None:
    """Check that no key is given twice in a task's YAML file, nor in those that it includes.

    Raises   ConfigError; the harness would take the last value. It refuses invalid YAML itself
    """
    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return
    nodes, visited = [root], set[int]()
    while nodes:
        node = nodes.pop()
        if node is None or id(node) in visited or isinstance(node, yaml.ScalarNode):
            continue
        visited.add(id(node))  # an alias is the node that it names
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
            continue
        try:
            check_once(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        except RepeatedKeyError as error:
            line = node.start_mark.line + 1
            raise ConfigError(
                str(error), where=f"{file}, below line {line}", fix="Leave one out"
            ) from None
        for key, value in node.value:
            nodes.append(value)
            if node is root and key.value == "include" and isinstance(value, yaml.ScalarNode):
                included = (file.parent / value.value).resolve()
                if included not in seen:
                    _check_yaml(included, seen | {included})


def _lines(
    tasks: Mapping[str, Any], samples: Mapping[str, Any], context: TaskContext
) -> list[dict[str, Any]]:
    """A line for each document: the harness' sample, with what `ItemLine` has."""
    lines: list[dict[str, Any]] = []
    for name, rows in samples.items():
        task = tasks[name]
        blind = _blind(task, rows, context)
        documents: dict[int, dict[str, Any]] = {}
        for row in sorted(rows, key=lambda row: row["doc_id"]):
            line = documents.get(row["doc_id"])
            if line is None:
                line = json.loads(json.dumps(row, default=str))
                line |= {"line": len(lines) + 1, "task": name, "values": {}, "weights": {}}
                line |= {"groups": {"task": name} if len(samples) > 1 else {}}
                line |= {"asked": _asked(task, row), **blind(row)}
                documents[row["doc_id"]] = line
                lines.append(line)
            for metric in row["metrics"]:
                value, label = row[metric], _label(metric, row["filter"])
                if isinstance(value, bool | int | float):
                    line["values"][label] = float(value)
                elif metric == "bits_per_byte":
                    log_likelihood, size = value
                    line["values"][label] = -log_likelihood / size / math.log(2)
                    line["weights"][label] = float(size)
    return lines


def _weigh(lines: list[dict[str, Any]], group: Any, results: Mapping[str, Any], file: Path) -> None:
    """Give items the weights with which the group's metric, as its file defines it, is their mean.

    Source   lm_eval 0.4.13, api/group.py: Group.aggregate
    Raises   ConfigError for a metric that one of the tasks has not
    """
    names = [task.task_name for task in group.get_all_tasks()]
    for asked in group.aggregate_metric_list or ():
        for key in [key for key in results[group.name] if key.startswith(f"{asked.metric},")]:
            label = _label(*key.split(",", 1))
            if missing := [name for name in names if key not in results[name]]:
                raise ConfigError(
                    f"{visible(label)} is a metric of group {visible(group.name)}, and task "
                    f"{visible(missing[0])} has none",
                    where=str(file),
                    fix="Leave the task out, or give it the metric",
                )
            for name in names:
                own = [line for line in lines if line["task"] == name and label in line["values"]]
                total = math.fsum(line["weights"].get(label, 1.0) for line in own)
                share = len(own) if asked.weight_by_size else 1 / len(names)
                for line in own:
                    line["weights"][label] = line["weights"].get(label, 1.0) / total * share


def _label(metric: str, filter_name: str) -> str:
    return metric if filter_name == "none" else f"{metric} {filter_name}"


def _asked(task: Any, row: Mapping[str, Any]) -> list[str]:
    """The question, and the question with its answer, to search for in the training text."""
    text = task.doc_to_text(row["doc"])
    first, *_ = row["arguments"]
    if not isinstance(text, str) or not text.strip():
        return [" ".join(part for part in first if isinstance(part, str))]
    target = row["target"]
    if task.OUTPUT_TYPE == _CHOICE:
        choices, label = task.doc_to_choice(row["doc"]), _right(task, row)
        target = "" if label is None else choices[label]
    return [text, f"{text}{task.config.target_delimiter}{target}"]


def _right(task: Any, row: Mapping[str, Any]) -> int | None:
    """The number of the right choice; None for several.

    Raises   ConfigError where it is none of them, which the harness counts as wrong.
    """
    target: Any = row["target"]
    choices: list[str] = task.doc_to_choice(row["doc"])
    if isinstance(target, list):
        return None
    if isinstance(target, str) and target in choices:
        return choices.index(target)
    if not isinstance(target, int) or not 0 <= target < len(choices):
        raise ConfigError(
            f"doc_to_target of item {row['doc_id']} is {visible(repr(target), 80)}, none of its "
            f"{len(choices)} choices",
            where=f"task {visible(task.config.task)}",
            fix="Correct doc_to_target, or the row",
        )
    return int(target)


def _blind(
    task: Any, rows: Sequence[Mapping[str, Any]], context: TaskContext
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Chance, right answer and credits of the blind baselines of a sample."""
    if task.OUTPUT_TYPE == _WRITTEN:
        return lambda row: {"answer": str(row["target"])[:128]} if _single(row["target"]) else {}
    if task.OUTPUT_TYPE != _CHOICE:
        return lambda row: {}
    model, pack = context.model, context.pack
    known = pack is not None and isinstance(model.tokenizer, Tokenizer)
    unigram = unigram_log_probs(pack) if known and pack is not None else None
    questions: dict[int, tuple[list[str], ScoringRequest]] = {}
    for row in rows:
        choices = task.doc_to_choice(row["doc"])
        if _right(task, row) is not None and isinstance(task.doc_to_text(row["doc"]), str):
            delimiter = task.config.target_delimiter
            ids = [model.tokenizer.encode(f"{delimiter}{choice}") for choice in choices]
            questions[row["doc_id"]] = (choices, ScoringRequest(model.context_ids(""), ids))
    scores = score_questions(
        model.decoder, [request for _, request in questions.values()], context.config.batch_tokens
    )
    alone = dict(zip(questions, scores, strict=True))

    def line(row: Mapping[str, Any]) -> dict[str, Any]:
        label, number = _right(task, row), row["doc_id"]
        count = len(task.doc_to_choice(row["doc"]))
        if label is None:
            return {}
        if number not in questions:
            return {"chance": 1 / count, "label": label}
        choices, request = questions[number]
        free = [score.log_prob for score in alone[number]]
        return {
            "chance": 1 / count,
            "label": label,
            "texts": [sha256_bytes(choice.encode())[:16] for choice in choices],
            "blind": blind_credits(choices, request.continuations, label, free, unigram),
        }

    return line


def _single(target: object) -> bool:
    return isinstance(target, str | int | float)


def _item_lines(
    lines: Sequence[Mapping[str, Any]], means: Mapping[str, float]
) -> Iterator[ItemLine]:
    keys = ("line", "groups", "weights", "chance", "blind", "label", "texts", "answer", "truncated")
    for line in lines:
        plain = {key: line[key] for key in keys if key in line}
        values = {name: line["values"][name] for name in means}
        yield decode(ItemLine, {**plain, "values": values}, "a sample of lm_eval", "item")


def _reported(task: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float, Any]]:
    """Label, value and standard error of each metric that the harness reports of a task."""
    for key, value in values.items():
        metric, comma, filter_name = key.partition(",")
        if comma and not metric.endswith("_stderr") and isinstance(value, float | int):
            error = values.get(f"{metric}_stderr,{filter_name}")
            yield _label(metric, filter_name), float(value), error


def _metrics(
    task: str, report: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> dict[str, TaskMetric]:
    return {
        label if name == task else f"{name} {label}": TaskMetric(
            value=value, standard_error=error if isinstance(error, float) else None
        )
        for name, values in report["results"].items()
        for label, value, error in _reported(name, values)
    }


def _means(
    task: str, report: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Metrics that are means over the items: they have an interval, and two models are compared by them."""
    means = {}
    for label, value, _ in _reported(task, report["results"].get(task, {})):
        values = [line["values"].get(label) for line in lines]
        weights = [line["weights"].get(label, 1.0) for line in lines]
        known = [value for value in values if value is not None and math.isfinite(value)]
        if lines and len(known) == len(lines):
            mean = math.fsum(map(math.prod, zip(known, weights, strict=True))) / math.fsum(weights)
            if math.isclose(mean, value, rel_tol=1e-6, abs_tol=1e-9):
                means[label] = value
    return means
