"""Configuration of an evaluation. No torch here."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from stamm.base.bounds import (
    AtLeastOne,
    Natural,
    Seed,
    Threads,
    at_least,
    distinct,
    not_empty,
    within,
)
from stamm.base.config import nearest, validate
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import has_ending, read_json
from stamm.base.user_code import NAMES_CODE, is_reference, reference_files

PAIRS_SHIPPED = 15
BuiltInTask = Literal["held_out", "blimp"]
BUILT_IN_TASKS: tuple[str, ...] = get_args(BuiltInTask)
UNREAD = {
    "chat": "nothing of {} is asked in a chat",
    "rolling": "{} scores no whole texts",
    "shots": "{} has no examples",
    "shots_seed": "{} has no examples with these settings",
    "task_folder": "the data of {} are not looked for in a folder",
    "context": "{} has no windows: it is for held_out",
    "overlap": "{} has no windows: it is for held_out",
    "blimp_pairs_per_paradigm": "{} is not blimp",
}
"""Settings that not every task reads, and the message for one that none does."""
_NEUTRAL = ("chat", "rolling", "shots")  # checked also where the command line does not change them
DESCRIPTIONS = "data/tasks"
_DATA = (".jsonl", ".jsonl.zst", ".jsonl.gz")
_YAML_NAME = re.compile(r"^(task|group):[ \t]*[\"']?([^\s\"'#]+)", re.MULTILINE)
_INCLUDE = re.compile(r"^include:\s*[\"']?([^\s\"'#]+)", re.MULTILINE)
_WORD = re.compile(r"[^\s\"'\[\]{},#]{1,1000}")
_FILES = (".json", ".yaml", ".yml", *_DATA)
_MOST_FILES, _LONGEST_NAME = 1000, 250


@functools.cache
def shipped_tasks() -> tuple[str, ...]:
    """Names of the shipped task descriptions, sorted."""
    folder = resources.files(__package__) / DESCRIPTIONS
    return tuple(sorted(f.name.removesuffix(".json") for f in folder.iterdir()))


def is_task_file(name: str) -> bool:
    """Whether a task is named by a file (description or data), or is a shipped description."""
    return has_ending(name, (".json", *_DATA)) or name in shipped_tasks()


def is_harness_file(name: str) -> bool:
    """Whether a task is a YAML file of lm-evaluation-harness."""
    return has_ending(name, (".yaml", ".yml"))


def task_name(file: Path) -> str:
    """The task or group that a YAML file defines, "" for none; its own tags are not parsed."""
    names = _YAML_NAME.findall(file.read_text(encoding="utf-8", errors="replace"))
    return next((name for _, name in sorted(names)), "")  # "group" before "task"


def harness_files(file: Path) -> dict[str, Path]:
    """A YAML task's files: every word of it that is a path, a module or a task of its folder.

    Paths are from the current folder or from that of the file; of a folder, all files below it.

    Raises   ConfigError for a folder of more than 1,000 files.
    """
    others: dict[str, Path] = {}
    for path in sorted(file.parent.rglob("*.y*ml")):
        others.setdefault(task_name(path), path)
    files: dict[str, Path] = {}
    waiting, included = [file], set[Path]()
    while waiting:
        path = waiting.pop()
        if str(path) in files:
            continue
        files[str(path)] = path
        if not (is_harness_file(path.name) or path in included):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        included |= {path.parent / name for name in _INCLUDE.findall(text)}
        for word in sorted(set(_WORD.findall(text))):
            if max(map(len, Path(word).parts), default=0) > _LONGEST_NAME:
                continue
            module = path.parent / f"{word.partition('.')[0]}.py"
            named = [Path(word), path.parent / word, module]
            if "*" in word and Path(word).suffix:
                root = Path(word).anchor
                with contextlib.suppress(ValueError):  # "**" within a name: emphasis, not a pattern
                    named += sorted(Path(root).glob(word.removeprefix(root)))
            waiting += [others[word]] if word in others else []
            waiting += [entry for entry in named if entry.is_file()]
            if "/" in word and Path(word).is_dir():
                below = sorted(entry for entry in Path(word).rglob("*") if entry.is_file())
                if len(below) > _MOST_FILES:
                    raise ConfigError(
                        f"{path} names {word}, a folder of {len(below):,} files, more than "
                        f"{_MOST_FILES:,}",
                        where="evaluate.tasks",
                        fix="Name the files that the task reads",
                    )
                waiting += below
    return files


def shipped_data(name: str, file: str, folder: str | None) -> Path:
    """The data of a shipped description: in the package, in `folder`, or one level below it.

    Raises   ConfigError when it needs a folder; DataError when the folder has not the file.
    """
    packed = Path(str(resources.files(__package__) / "data" / file))
    if packed.is_file():
        return packed
    if folder is None:
        raise ConfigError(
            f"the data of task {name!r}, {file}, are not shipped",
            where="evaluate.task_folder",
            fix="Set task_folder to a folder that has them",
        )
    root = Path(folder)
    data = next((p for p in (root / file, *sorted(root.glob(f"*/{file}"))) if p.is_file()), None)
    if data is None:
        raise DataError(f"{root} has no {file}, also not one level below", where=f"task {name!r}")
    return data


def description_path(name: str) -> Path:
    """The shipped description of a task."""
    return Path(str(resources.files(__package__) / DESCRIPTIONS / f"{name}.json"))


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Evaluation tasks and how the model reads text in them.

    tasks          "held_out" (loss and bits per byte of held-out text), "blimp" (English minimal
                   pairs), a shipped task ("hellaswag"), a file "mine.jsonl" or "mine.json"
                   (docs/evaluation.md), "mine.yaml" of lm-evaluation-harness, or "mine.py:MyTask"
                   (docs/extending/evaluation_task.md)
    task_folder    folder with the data of tasks that are shipped without them, or one above it
    shots          examples before each question (few-shot), from the split that the task names
    shots_seed     that chooses them
    chat           whether questions are asked in the model's chat format
    limit          items of each task from a file that are asked, chosen by hash (of a YAML task the
                   first ones); None: all
    rolling        whole texts, of perplexity and YAML tasks: "text" scores the text behind what the tokenizer
                   adds to it; "harness" what it adds, too, as lm-evaluation-harness does
    checkpoints    "all": every checkpoint of the arm, for `stamm evaluate`; "last": its model
    batch_tokens   tokens of one forward pass, padding included; results depend on it only in the
                   last digits, and it is fixed so that they do not depend on the machine
    context        tokens the model sees at once; None means the model's max_context
    overlap        a document longer than the context is read in windows, each of which begins
                   with this many tokens of the one before; None means half the context
    blimp_pairs_per_paradigm   minimal pairs used of each of the 67 paradigms
    threads        CPU threads; part of the configuration because sums depend on it
    """

    MAIN_FIELD: ClassVar = "tasks"

    tasks: Annotated[tuple[str, ...], not_empty(), distinct("names a task twice")] = field(
        default=BUILT_IN_TASKS, metadata=NAMES_CODE
    )
    task_folder: str | None = None
    shots: Natural = 0
    shots_seed: Seed = 28
    chat: bool = False
    limit: AtLeastOne | None = None
    rolling: Literal["text", "harness"] = "text"
    checkpoints: Literal["last", "all"] = "last"
    batch_tokens: AtLeastOne = 8192
    context: Annotated[int, at_least(2)] | None = None
    overlap: AtLeastOne | None = None
    blimp_pairs_per_paradigm: Annotated[
        int, within(f"[1, {PAIRS_SHIPPED}]", ", the number shipped")
    ] = PAIRS_SHIPPED
    threads: Threads = 2

    def __post_init__(self) -> None:
        context, overlap = self.context, self.overlap
        validate(
            self,
            (
                "overlap",
                overlap is None or context is None or overlap < context,
                f"must be below context = {context}",
            ),
        )
        for name in self.tasks:
            from_file = is_task_file(name) or is_harness_file(name)
            if not (name in BUILT_IN_TASKS or from_file or is_reference(name)):
                known = (*BUILT_IN_TASKS, *shipped_tasks())
                raise ConfigError(
                    f"EvaluateConfig.tasks: {name!r} is not an evaluation task",
                    fix=f'{nearest(name, known)}, a file "mine.jsonl", or "mine.py:MyTask"',
                )


def task_inputs(tasks: Sequence[str], folder: str | None) -> dict[str, Path]:
    """The files that tasks read: a user's code, descriptions, YAML files, and the data that they name.

    folder   with the data of tasks that are shipped without them

    Raises   ConfigError or DataError for a description without data, and as `harness_files`.
    """
    inputs = reference_files(tasks) | {
        name: Path(name) for name in tasks if has_ending(name, _FILES)
    }
    for name in tasks:
        if is_harness_file(name) and Path(name).is_file():
            inputs |= harness_files(Path(name))
        shipped = name in shipped_tasks()
        if not shipped and not has_ending(name, ".json"):
            continue
        path = description_path(name) if shipped else Path(name)
        plain = read_json(path)
        file = plain.get("file") if isinstance(plain, dict) else None
        if not isinstance(file, str) or not file:
            raise ConfigError(f"{path} names no data file", fix='Set "file"')
        data = shipped_data(name, file, folder) if shipped else path.parent / file
        if not data.is_file():
            raise DataError(
                f"{data} is not a file", where=name, fix='Correct "file" of the description'
            )
        inputs[f"data of {name}"] = data
    return inputs


def check_step(config: EvaluateConfig) -> None:
    """Check what can be checked without the tasks, so that a recipe refuses it before it trains.

    Raises   ConfigError for checkpoints="all", and as `check_settings_read` where all tasks are built in.
    """
    if config.checkpoints == "all":
        raise ConfigError(
            "checkpoints = all evaluates a finished run",
            where="evaluate.checkpoints",
            fix="Run `stamm evaluate RUN checkpoints=all` after it",
        )
    own = [name for name in config.tasks if name not in BUILT_IN_TASKS]
    if built_in := [name for name in config.tasks if name in BUILT_IN_TASKS]:
        check_limit(config, f"{built_in[0]} is built in")
    check_settings_read(config, UNREAD if own else (), ", ".join(config.tasks), config)


def check_limit(config: EvaluateConfig, why: str) -> None:
    """Raise ConfigError for a limit, which a task does not read.

    why   completes "limit = value is for tasks from files, and"
    """
    if config.limit is not None:
        raise ConfigError(
            f"limit = {config.limit} is for tasks from files, and {why}",
            where="evaluate.limit",
            fix="Leave it out of tasks, or set blimp_pairs_per_paradigm",
        )


def check_settings_read(
    config: EvaluateConfig, read: Collection[str], named: str, usual: EvaluateConfig
) -> None:
    """Check the settings against those that the tasks read.

    named   the tasks, in messages
    usual   its settings need no reader, except chat, rolling and shots that are not the default

    Raises   ConfigError for a setting without a reader.
    """
    default = EvaluateConfig()
    for key, reason in UNREAD.items():
        value, other = getattr(config, key), getattr(default if key in _NEUTRAL else usual, key)
        if key not in read and value != other:
            shown = str(other).lower() if isinstance(other, bool) else other
            raise ConfigError(
                f"{key} = {value}, and {reason.format(named)}",
                where=f"evaluate.{key}",
                fix=f"Set {key}={'none' if shown is None else shown}",
            )
