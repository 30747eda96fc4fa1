"""Task files: a description in JSON, and items in JSONL. docs/evaluation.md describes the format.

"mine.json" is a description that names its data file; "mine.jsonl" has its description in the first
line, {"stamm_task": {…}}. Descriptions that are shipped have a name ("hellaswag"); their data are
shipped, too, or in a folder that the user names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from stamm.base.bounds import AtLeastOne, not_empty
from stamm.base.config import from_plain, validate
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import canonical_json, has_ending, read_json, sha256_file
from stamm.base.json_text import parse_json
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines
from stamm.evaluate.config import description_path, shipped_data, shipped_tasks
from stamm.evaluate.text_overlap import OVERLAPS

Kind = Literal[
    "multiple_choice", "minimal_pairs", "cloze", "generation", "instructions", "perplexity"
]
Match = Literal["exact", "number", "regex"]
CHOICE_METRICS = ("acc", "acc_norm", "acc_bytes", "acc_token", "acc_pmi")
METRICS: dict[Kind, tuple[str, ...]] = {
    "multiple_choice": CHOICE_METRICS,
    "minimal_pairs": ("acc", "acc_token"),
    "cloze": ("acc", "log_prob"),
    "generation": ("acc",),
    "instructions": (
        "prompt_level_strict_acc",
        "inst_level_strict_acc",
        "prompt_level_loose_acc",
        "inst_level_loose_acc",
    ),
    "perplexity": ("bits_per_byte",),
}
"""Metrics of each kind; acc_norm divides log-likelihoods by characters, as lm-evaluation-harness does."""
PROBABILITY = "mc2"
"""Metric of a multiple_choice with several right choices, as TruthfulQA's MC2: their share of probability."""
GENERATED = ("generation", "instructions")
_ASKED = ("multiple_choice", *GENERATED)
HEADER = "stamm_task"
LINE_BYTES = 2**20
EXPANSION = 200
_UNNAMED = re.compile(r"[^a-z0-9_]+")


@dataclass(frozen=True, kw_only=True)
class TaskDescription:
    """Description of a task: its kind, and templates with fields of an item, "{a field}" or "{a.b}".

    kind            multiple_choice and minimal_pairs compare log-likelihoods; cloze asks whether the
                    last word is the greedy continuation; generation compares a greedy completion;
                    instructions checks those of the row, as IFEval; perplexity scores whole texts
    file            data file, beside the description or in the folder of tasks
    context         template of the question; "" for minimal pairs
    choices         templates of the choices, or the one name of a field with a list of texts
    answer          field of the right choice: its number from 0, its letter, its text, or a list of
                    0 and 1 (one that is both a text and the number of another is refused); of a generation, the field of the answer, or of a list of right answers
    labels          templates of the labels of the choices, one of which `answer` is, or the one name of
                    a field with a list of them; () for none
    blank           text in the context that the choices stand for: what follows it is scored, with each
                    choice in its place, as in WinoGrande; "" for choices that follow the context
    text            template of the text of cloze and perplexity
    delimiter       between context and continuation
    until           texts that end a completion
    max_new_tokens  longest completion
    metric          the main metric; "" for acc_norm of multiple_choice, and else the first; of a generation
                    also f1, rouge_l or sentence_bleu
    match           exact: the whole completion, without white space at its ends; number: its last
                    number; regex: the first group of the last match of `pattern`
    pattern         regular expression
    ignore_case     whether exact and regex ignore case
    split           items whose field "split" has this value are asked; "" for all
    shots_split     items of this split serve as examples (few-shot)
    shots_answer    template of the answer of an example; "" for that of an item
    groups          fields whose values results are given by
    cluster         field of items that depend on each other, for standard errors: a document, a paradigm
    encoding        of the data file
    sha256          of the data file; "" for any
    """

    kind: Kind
    name: str = ""
    file: str = ""
    context: str = ""
    choices: Annotated[tuple[str, ...], not_empty()] = ("choices",)
    answer: str = "answer"
    labels: tuple[str, ...] = ()
    blank: str = ""
    text: str = "{text}"
    delimiter: str = " "
    until: tuple[str, ...] = ("\n",)
    max_new_tokens: AtLeastOne = 128
    metric: str = ""
    match: Match = "exact"
    pattern: str = ""
    ignore_case: bool = False
    split: str = ""
    shots_split: str = ""
    shots_answer: str = ""
    groups: tuple[str, ...] = ("language",)
    cluster: str = ""
    source: str = ""
    license: str = ""
    encoding: str = "utf-8"
    sha256: str = ""

    def __post_init__(self) -> None:
        if self.metric.startswith("pass@"):
            raise ConfigError(
                f"metric = {self.metric!r} runs programs that the model writes, which stamm does not",
                fix="Leave it out, and score the completions of the items file elsewhere "
                "(docs/evaluation.md, Generated code)",
            )
        try:
            has_lines = "\n".encode(self.encoding) == b"\n"
        except (LookupError, ValueError):
            has_lines = False
        metrics: tuple[str, ...] = ("acc",) if self.blank else METRICS[self.kind]
        if self.kind == "multiple_choice" and not self.blank:
            metrics += (PROBABILITY,)
        if self.kind == "generation":
            metrics += tuple(OVERLAPS)
        try:
            groups = re.compile(self.pattern).groups
        except (re.error, OverflowError, RecursionError):
            groups = -1
        validate(
            self,
            ("until", all(self.until), "contains an empty text"),
            (
                "pattern",
                self.match != "regex" or groups == 1,
                "must be a regular expression with one group",
            ),
            ("context", self.kind not in _ASKED or bool(self.context), "is empty"),
            ("metric", self.metric in ("", *metrics), f"is not one of {metrics}"),
            ("encoding", has_lines, "is not an encoding that ends lines as ASCII does"),
            *(
                (key, "{{" not in value and "}}" not in value, "has two braces; a field is {name}")
                for key in ("context", "text", "shots_answer")
                for value in (getattr(self, key),)
            ),
            (
                "choices",
                not any("{{" in choice or "}}" in choice for choice in self.choices),
                "has two braces; a field is {name}",
            ),
            ("blank", not self.blank or self.kind == "multiple_choice", "is for multiple_choice"),
        )

    @property
    def is_choice(self) -> bool:
        """Whether the answer is one of several given."""
        return self.kind in ("multiple_choice", "minimal_pairs")

    @property
    def main_metric(self) -> str:
        """The metric that is shown first."""
        if self.metric or self.blank:
            return self.metric or "acc"
        return METRICS[self.kind][self.kind == "multiple_choice"]

    @property
    def has_chat_form(self) -> bool:
        """Whether the questions can be asked in a chat format."""
        return self.kind in _ASKED and not self.blank


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """A description with its data.

    data        JSONL, CSV or TSV, plain or compressed
    skip        lines before the items: 1 where the first is the description
    limit       items that are asked, chosen by the hashes of their lines; None: all
    """

    name: str
    description: TaskDescription
    data: Path
    skip: int
    sha256: str
    limit: int | None = None


def open_task(name: str, folder: str | None) -> TaskData:
    """The task that `name` stands for: a file, or a shipped description.

    folder   where data files of shipped descriptions are looked for, and one level below

    Raises   ConfigError for a description that does not fit; DataError when a file is missing, damaged
             or not the one that the description is for.
    """
    skip = 0
    if name in shipped_tasks():
        path = description_path(name)
        described = _description(read_json(path), str(path))
        data = shipped_data(name, described.file, folder)
    elif has_ending(name, ".json"):
        path = Path(name)
        described = _description(read_json(path), name)
        data = path.parent / described.file
    else:
        path = data = Path(name)
        skip = 1
    if not data.is_file():
        fix = 'Correct "file" of the description' if data != path else "Correct its path"
        raise DataError(f"{data} is not a file", where=name, fix=fix)
    if skip:
        described = _header(data)
    sha256 = sha256_file(data)
    if described.sha256 and described.sha256 != sha256:
        raise DataError(
            f"{data} has SHA-256 {sha256[:12]}, and the description is for {described.sha256[:12]}",
            where=name,
            fix='Get the file again, or write a description of your own without "sha256"',
        )
    stem = described.name or path.name.split(".", 1)[0]
    own = _UNNAMED.sub("_", stem.lower()).strip("_")[:40]
    if not own:
        raise ConfigError(f"{name}: {stem!r} cannot name result files", fix='Set "name"')
    return TaskData(name=own, description=described, data=data, skip=skip, sha256=sha256)


def _description(plain: Any, where: str) -> TaskDescription:
    if not isinstance(plain, dict):
        raise ConfigError(f"{where} is not a JSON object, which describes a task")
    try:
        canonical_json(plain)
    except UnicodeEncodeError:
        raise ConfigError(f"{where} contains a lone surrogate, which no file can hold") from None
    given = dict(plain)
    for key in ("choices", "groups", "labels", "until"):
        if isinstance(given.get(key), str):
            given[key] = [given[key]] if given[key] else []
    if given.get("kind") == "minimal_pairs":
        given.setdefault("choices", ["{good}", "{bad}"])
    try:
        return from_plain(TaskDescription, given, where)
    except ConfigError as error:
        raise ConfigError(error.what, where=where, fix=error.fix) from None


def _header(data: Path) -> TaskDescription:
    """The description in the first line of a JSONL file."""
    try:
        with BoundedStream(data, EXPANSION) as stream:
            first = next(bounded_lines(stream, LINE_BYTES), None)
        plain = parse_json(first.data) if first is not None else None
    except (StreamError, ValueError, RecursionError) as error:
        raise DataError(f"line 1 of {data} is not JSON: {str(error)[:200]}") from None
    if not isinstance(plain, dict) or HEADER not in plain:
        raise ConfigError(
            f"the first line of {data} does not describe the task",
            fix=f'Begin the file with {{"{HEADER}": {{"kind": "multiple_choice", …}}}}, or name a '
            "description, mine.json (docs/evaluation.md)",
        )
    if len(plain) > 1:
        other = next(key for key in plain if key != HEADER)
        raise ConfigError(
            f"the first line of {data} has {other!r} beside {HEADER!r}",
            fix=f"Move it into the object of {HEADER!r}, or to the items",
        )
    return replace(_description(plain[HEADER], f"{data}, line 1"), file=data.name)
