"""A task from a file: score items in blocks, then metrics with intervals, groups and blind baselines."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stamm.base.clustered_ratio import ClusteredRatio
from stamm.base.config import to_plain
from stamm.base.errors import DataError
from stamm.base.files import sha256_file, sha256_value
from stamm.base.schema import read_lines
from stamm.base.time_limit import MATCH_SECONDS, time_limit
from stamm.corpus.packed_dataset import MANIFEST
from stamm.corpus.tokenizer.tokenizer import Tokenizer
from stamm.evaluate.answer_number import answer_number
from stamm.evaluate.blind import (
    BlindSummary,
    blind_credits,
    credit,
    most_frequent,
    unigram_log_probs,
)
from stamm.evaluate.contamination import contamination_of
from stamm.evaluate.fairness import language_fairness
from stamm.evaluate.instructions import followed
from stamm.evaluate.item_file import ItemFile, blocks_of
from stamm.evaluate.items import (
    Examples,
    RejectedRow,
    TaskItem,
    choose_examples,
    first_group,
    read_items,
)
from stamm.evaluate.scoring import (
    Score,
    ScoringRequest,
    generate_until,
    loglikelihood_rolling,
    score_questions,
)
from stamm.evaluate.task import TaskContext, TaskMetric, TaskResult, ratio_metric
from stamm.evaluate.task_file import GENERATED, TaskData, TaskDescription
from stamm.models.decoder import Decoder
from stamm.runs.schemas.evaluation import ItemLine

BLOCK, GENERATED_BLOCK = 2000, 200  # items that are scored, or answered, then written, together
VERSION = 4  # of the rules; a change of numbers makes it larger
MOST_GROUPS = MOST_LINES = 1000
MANY = "(others)"
LANGUAGE = "language"
TOO_LONG = "longer than the model's context"
_LONGEST_OUTPUT = 2000
_LONGEST_ANSWER = 128


class FileTask:
    """The task of a description and its data, for any model.

    Checked  tests/unit/evaluate/test_file_task.py
    """

    def __init__(self, data: TaskData) -> None:
        self.data = data
        self.name = data.name

    def identity(self, context: TaskContext) -> str:
        """Hash of everything that the result depends on."""
        config, pack, model = context.config, context.pack, context.model
        return sha256_value(
            [
                VERSION,
                to_plain(self.data.description),
                self.data.sha256,
                model.sha256,
                model.tokenizer.sha256,
                [config.shots, config.shots_seed, config.batch_tokens],
                model.chat.sha256 if config.chat and model.chat is not None else config.chat,
                "" if pack is None else sha256_file(pack / MANIFEST),
            ]
        )

    def run(self, model: Decoder, tokenizer: Tokenizer, context: TaskContext) -> TaskResult:
        """Score every item that an earlier, killed run did not score.

        Raises   DataError when no item can be asked; ConfigError as `choose_examples` and the scoring.
        """
        config, described = context.config, self.data.description
        examples = choose_examples(self.data, config.shots, config.shots_seed)
        identity = self.identity(context)
        total = sum(1 for _ in read_items(self.data))
        size = GENERATED_BLOCK if described.kind in GENERATED else BLOCK
        file = ItemFile(context.folder / f".{self.name}.jsonl", f"{identity} {size}")
        scorer = ItemScorer(described, context, examples)
        context.progress.begin(self.name, total, "items")
        done = 0
        for number, block in enumerate(blocks_of(read_items(self.data), size)):
            if number >= file.blocks:
                file.append(scorer.lines(block))
            done += len(block)
            context.progress.advance(done)
        context.progress.end(f"{total:,} items")
        summary = _Summary(described)
        summary.read(file.path)
        if not summary.items:
            raise DataError(
                f"{self.data.data} has no item that can be asked: "
                f"{_reasons(summary.rejected, described.split)}",
                where=f"task {self.name}",
                fix="Correct the fields that the description names",
            )
        contamination = contamination_of(self.data, context.pack)
        return TaskResult(
            metrics=summary.metrics(),
            num_items=summary.items,
            item_file=file,
            details={
                "identity": identity,
                "kind": described.kind,
                "metric": described.main_metric,
                "source": described.source,
                "license": described.license,
                "data_sha256": self.data.sha256,
                "settings_sha256": sha256_value(
                    [VERSION, to_plain(described), config.shots, config.shots_seed, config.chat]
                ),
                "shots": config.shots,
                "chat": config.chat,
                **summary.details(),
                **contamination.details(),
                "contaminated_lines": list(contamination.items or ())[:MOST_LINES],
            },
        )


class ItemScorer:
    """Turns blocks of items into lines of results."""

    def __init__(
        self, described: TaskDescription, context: TaskContext, examples: Examples
    ) -> None:
        self._described, self._context, self._examples = described, context, examples
        self._model, self._config = context.model, context.config
        self._limit = context.model.decoder.config.max_context

    @functools.cached_property
    def _unigram(self) -> Any:
        """None without a packed corpus, or one of another vocabulary."""
        pack = self._context.pack
        known = pack is not None and isinstance(self._model.tokenizer, Tokenizer)
        return unigram_log_probs(pack) if known and pack is not None else None

    def lines(self, block: Sequence[TaskItem | RejectedRow]) -> list[Mapping[str, Any]]:
        """A line for each item, rejected ones included, in order."""
        lines: dict[int, Mapping[str, Any]] = {
            row.line: {"line": row.line, "rejected": row.reason}
            for row in block
            if isinstance(row, RejectedRow)
        }
        items = [item for item in block if isinstance(item, TaskItem)]
        kind = self._described.kind
        if kind == "perplexity":
            lines |= self._rolling(items)
        elif kind in GENERATED:
            lines |= self._generated(items)
        else:
            lines |= self._scored(items)
        return [lines[row.line] for row in block]

    def _scored(self, items: Sequence[TaskItem]) -> dict[int, Mapping[str, Any]]:
        lines: dict[int, Mapping[str, Any]] = {}
        asked: list[tuple[TaskItem, ScoringRequest]] = []
        for item in items:
            question = self._question(item)
            if max(map(len, question.continuations)) > self._limit:
                lines[item.line] = {"line": item.line, "rejected": TOO_LONG}
            else:
                asked.append((item, question))
        questions = [question for _, question in asked]
        scores = self._scores(questions)
        alone: list[list[Score]] = [[] for _ in asked]
        if self._described.kind == "multiple_choice":
            begin = self._model.context_ids("")
            alone = self._scores([ScoringRequest(begin, q.continuations) for q in questions])
        for (item, question), found, free in zip(asked, scores, alone, strict=True):
            line = self._begun(item, question)
            if self._described.kind == "cloze":
                values = {"acc": float(found[0].greedy), "log_prob": found[0].log_prob}
                answer = answer_key(self._described, item)
                lines[item.line] = {
                    **line, "values": values, "tokens": found[0].tokens, "answer": answer
                }  # fmt: skip
            else:
                lines[item.line] = {**line, **self._choice(item, question, found, free)}
        return lines

    def _choice(
        self, item: TaskItem, question: ScoringRequest, found: list[Score], free: list[Score]
    ) -> Mapping[str, Any]:
        log_probs = [score.log_prob for score in found]
        alone = [score.log_prob for score in free] or None
        by_metric = {
            "acc": log_probs,
            "acc_norm": [p / len(c) for p, c in zip(log_probs, item.choices, strict=True)],
            "acc_bytes": [
                p / len(c.encode()) for p, c in zip(log_probs, item.choices, strict=True)
            ],
            "acc_token": [score.log_prob / score.tokens for score in found],
        }
        if alone is not None:
            by_metric["acc_pmi"] = [p - q for p, q in zip(log_probs, alone, strict=True)]
        if self._described.kind == "minimal_pairs":
            by_metric = {name: by_metric[name] for name in ("acc", "acc_token")}
        blind = blind_credits(
            item.choices, question.continuations, item.label, alone, self._unigram
        )
        return {
            "chance": 1 / len(item.choices),
            "label": item.label,
            "values": {name: credit(values, item.label) for name, values in by_metric.items()},
            "blind": blind,
            "solved_blind": [name for name, value in blind.items() if value == 1.0],
            "log_probs": log_probs,
            "tokens": [score.tokens for score in found],
            "unconditional": alone,
        }

    def _generated(self, items: Sequence[TaskItem]) -> dict[int, Mapping[str, Any]]:
        described = self._described
        contexts = [self._context_ids(item) for item in items]
        # A small model has no room for the whole answer that a large one would give.
        new_tokens = min(described.max_new_tokens, self._limit // 2)
        outputs = generate_until(self._model, contexts, described.until, new_tokens)
        room = self._limit - new_tokens
        return {
            item.line: {
                **self._begun(item, None),
                "truncated": len(context) > room,
                **answer_values(described, item, output),
                "answer": answer_key(described, item),
                "output": output[:_LONGEST_OUTPUT],
            }
            for item, context, output in zip(items, contexts, outputs, strict=True)
        }

    def _rolling(self, items: Sequence[TaskItem]) -> dict[int, Mapping[str, Any]]:
        texts = [item.answer for item in items]
        found = loglikelihood_rolling(self._model, texts, self._config.batch_tokens)
        lines: dict[int, Mapping[str, Any]] = {}
        for item, log_prob in zip(items, found, strict=True):
            size = len(item.answer.encode())
            bits = -log_prob / math.log(2) / size
            values = {"bits_per_byte": bits}
            lines[item.line] = {**self._begun(item, None), "weight": float(size), "values": values}
        return lines

    def _begun(self, item: TaskItem, question: ScoringRequest | None) -> dict[str, Any]:
        cut = False
        if question is not None:
            longest = max(map(len, question.continuations))
            cut = len(question.context) + longest - 1 > self._limit
        return {
            "line": item.line,
            "id": item.name,
            "groups": dict(item.groups),
            "cluster": item.cluster,
            "truncated": cut,
        }

    def _question(self, item: TaskItem) -> ScoringRequest:
        texts = item.choices or (item.answer,)
        if self._config.chat and self._described.kind == "multiple_choice":
            encode = self._model.tokenizer.encode
            return ScoringRequest(self._context_ids(item), [encode(text.strip()) for text in texts])
        between = self._described.delimiter if item.context else ""
        if self._described.kind == "cloze":
            between = " "
        before = self._before(item)
        pairs = [self._model.encode_pair(before, between + text) for text in texts]
        return ScoringRequest(pairs[0][0], [y for _, y in pairs])

    def _context_ids(self, item: TaskItem) -> list[int]:
        if self._config.chat:
            shots = self._examples.get(first_group(item.groups), ())
            return self._model.chat_ids(shots, item.context)
        return self._model.context_ids(self._before(item))

    def _before(self, item: TaskItem) -> str:
        """The context behind its examples, two line breaks between them."""
        shots = self._examples.get(first_group(item.groups), ())
        answered = [f"{asked}{self._described.delimiter}{answer}" for asked, answer in shots]
        return "\n\n".join((*answered, item.context))

    def _scores(self, questions: Sequence[ScoringRequest]) -> list[list[Score]]:
        return score_questions(self._model.decoder, questions, self._config.batch_tokens)


def answer_values(described: TaskDescription, item: TaskItem, output: str) -> dict[str, Any]:
    """Metrics of a completion and their weights: right or not, or the instructions that it follows.

    Edge     a completion whose match takes longer than MATCH_SECONDS is unanswered, and wrong
    Source   of the four accuracies of instructions: arXiv 2311.07911, section 2.2
    """
    if described.kind != "instructions":
        try:
            with time_limit():
                right = is_right(described, output, item.answer)
        except TimeoutError:
            return {"values": {"acc": 0.0}, "unanswered": True}
        return {"values": {"acc": float(right)}}
    values, weights = {}, {}
    for mode in ("strict", "loose"):
        results = followed(item.instructions, output, loose=mode == "loose")
        values[f"prompt_level_{mode}_acc"] = float(all(results))
        values[f"inst_level_{mode}_acc"] = sum(results) / len(results)
        weights[f"inst_level_{mode}_acc"] = float(len(results))
    return {"values": values, "weights": weights}


def is_right(described: TaskDescription, output: str, answer: str) -> bool:
    """Whether a completion gives the answer, by the rule of the description."""
    if described.match == "number":
        wanted, number = answer_number(answer), answer_number(output)
        return wanted is not None and wanted == number
    found_text = output
    if described.match == "regex":
        matches = re.findall(described.pattern, output)
        found_text = matches[-1] if matches else ""
    one, other = found_text.strip(), answer.strip()
    return (one.casefold() == other.casefold()) if described.ignore_case else one == other


def answer_key(described: TaskDescription, item: TaskItem) -> str:
    """The right answer as the rule of the description compares it; "" for instructions.

    Edge     cut to 128 characters
    """
    if described.kind == "instructions":
        return ""
    text = item.answer.strip()
    if described.kind == "generation" and described.match == "number":
        number = answer_number(text)
        return "" if number is None else str(number)[:_LONGEST_ANSWER]
    return (text.casefold() if described.ignore_case else text)[:_LONGEST_ANSWER]


@dataclass
class _Summary:
    """Metrics of a file of items, read line by line: memory does not grow with it."""

    described: TaskDescription
    items: int = 0
    truncated: int = 0
    unanswered: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    values: dict[str, ClusteredRatio] = field(default_factory=dict)
    blind: BlindSummary = field(default_factory=BlindSummary)
    chance: ClusteredRatio = field(default_factory=ClusteredRatio)
    groups: dict[str, dict[str, tuple[ClusteredRatio, ClusteredRatio]]] = field(
        default_factory=dict
    )

    def read(self, path: Path) -> None:
        """Add every line of a file."""

        def answers() -> Iterator[str]:
            for one in read_lines(ItemLine, path):
                if not one.rejected and (answer := _answer(one)):
                    yield answer

        credited = self.described.main_metric not in ("log_prob", "bits_per_byte")
        has_majority = credited and self.described.kind != "minimal_pairs"
        majority = most_frequent(answers) if has_majority else ""
        for one in read_lines(ItemLine, path):
            if one.rejected:
                self.rejected[one.rejected] += 1
                continue
            self.items += 1
            self.truncated += one.truncated
            self.unanswered += one.unanswered
            main = one.values[self.described.main_metric]
            main_weight = one.weights.get(self.described.main_metric, one.weight)
            for name, value in one.values.items():
                weight = one.weights.get(name, one.weight)
                ratio = self.values.setdefault(name, ClusteredRatio())
                ratio.add(value * weight, weight, one.cluster)
            blind = dict(one.blind)
            if majority:
                blind["majority"] = float(_answer(one) == majority)
            self.blind.add(main, blind, one.cluster)
            if one.chance is not None:
                self.chance.add(one.chance)
            for key, value_of in one.groups.items():
                among = self.groups.setdefault(key, {})
                known = value_of in among or len(among) < MOST_GROUPS
                ratio, chance = among.setdefault(
                    value_of if known else MANY, (ClusteredRatio(), ClusteredRatio())
                )
                ratio.add(main * main_weight, main_weight, one.cluster)
                chance.add(one.chance or 0.0)

    def metrics(self) -> dict[str, TaskMetric]:
        """Every metric, the main one first."""
        main = self.described.main_metric
        chance = self.chance.value if self.chance.count else None
        names = [main, *(name for name in self.values if name != main)]
        return {name: ratio_metric(self.values[name], chance) for name in names}

    def details(self) -> dict[str, Any]:
        """Groups, fairness over languages, blind baselines and rejected rows."""
        main = self.described.main_metric
        chance = self.chance.value if self.chance.count else None
        languages = self.groups.get(LANGUAGE, {})
        found: dict[str, Any] = {
            "clusters": self.values[main].clusters,
            "groups": {
                key: {
                    name: {
                        "items": ratio.count,
                        "value": ratio.value,
                        "standard_error": ratio.standard_error,
                        "chance": None if chance is None else guess.value,
                    }
                    for name, (ratio, guess) in sorted(among.items())
                }
                for key, among in self.groups.items()
            },
            "fairness": language_fairness(
                main, {name: ratio.value for name, (ratio, _) in languages.items() if name != MANY}
            ),
            "rejected": dict(self.rejected),
            "truncated": self.truncated,
            "unanswered": self.unanswered,
            **self.blind.details(chance),
        }
        if self.unanswered:
            found["warning"] = (
                f"{self.unanswered:,} of {self.items:,} items count as unanswered: the match of "
                f"`pattern` took more than {MATCH_SECONDS} s"
            )
        return found


def _answer(one: ItemLine) -> str:
    return one.answer or (str(one.label) if one.label >= 0 else "")


def _reasons(rejected: Mapping[str, int], split: str) -> str:
    empty = f"it has none of split {split!r}" if split else "it is empty"
    return ", ".join(f"{count:,} {reason}" for reason, count in rejected.items()) or empty
