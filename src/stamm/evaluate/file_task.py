"""A task from a file: score items in blocks, then metrics with intervals, groups and blind baselines."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import sha256_bytes, sha256_file, sha256_value
from stamm.base.schema import read_lines
from stamm.base.time_limit import time_limit
from stamm.corpus.packed_dataset import MANIFEST
from stamm.evaluate.answer_number import answer_number
from stamm.evaluate.blind import (
    blind_credits,
    credit,
    unigram_log_probs,
)
from stamm.evaluate.config import EvaluateConfig, shipped_tasks
from stamm.evaluate.contamination import contamination_of
from stamm.evaluate.instructions import followed
from stamm.evaluate.item_file import ItemFile, blocks_of
from stamm.evaluate.item_summary import ItemSummary
from stamm.evaluate.items import (
    Examples,
    RejectedRow,
    TaskItem,
    choose_examples,
    first_group,
    read_items,
)
from stamm.evaluate.records import ItemLine
from stamm.evaluate.scoring import (
    Score,
    ScoringRequest,
    generate_until,
    loglikelihood_rolling,
    score_questions,
)
from stamm.evaluate.task import TaskContext, TaskResult, file_task_name
from stamm.evaluate.task_file import GENERATED, PROBABILITY, TaskData, TaskDescription
from stamm.evaluate.text_overlap import OVERLAPS
from stamm.models.decoder import Decoder
from stamm.tokenizer.tokenizer import Tokenizer

BLOCK, GENERATED_BLOCK = 2000, 200  # items that are scored, or answered, then written, together
VERSION = 5  # of the rules; a change of numbers makes it larger
MOST_LINES = 1000
TOO_LONG = "longer than the model's context"
_LONGEST_OUTPUT = 20_000  # characters: a whole program, to be scored elsewhere
_LONGEST_ANSWER = 128


class FileTask:
    """The task of a description and its data, for any model.

    Checked  tests/unit/evaluate/test_file_task.py
    """

    def __init__(self, data: TaskData) -> None:
        self.data = data
        self.name = data.name

    def settings(self, config: EvaluateConfig) -> dict[str, Any]:
        """The settings that change how the items are asked, beside the model."""
        seed = config.shots_seed if config.shots else None
        chat = config.chat and self.data.description.has_chat_form
        settings: dict[str, Any] = {
            "shots": config.shots,
            "shots_seed": seed,
            "chat": chat,
            "limit": config.limit,
        }
        if self.data.description.kind == "perplexity":
            settings["rolling"] = config.rolling
        return settings

    def reads(self, config: EvaluateConfig) -> set[str]:
        """The settings, of those that not every task reads, that change this task."""
        described = self.data.description
        read = {"limit", "shots"} | ({"rolling"} if described.kind == "perplexity" else set())
        read |= {"shots_seed"} if config.shots else set()
        read |= {"chat"} if described.has_chat_form else set()
        folder = config.task_folder
        if folder is not None and self.name in shipped_tasks():
            read |= {"task_folder"} if self.data.data.is_relative_to(folder) else set()
        return read

    def result_name(self, config: EvaluateConfig, usual: EvaluateConfig) -> str:
        """The name of the result files, as `file_task_name`."""
        return file_task_name(self.name, self.settings(config))

    def identity(self, context: TaskContext) -> str:
        """Hash of everything that the result depends on."""
        config, pack, model = context.config, context.pack, context.model
        settings = self.settings(config)
        return sha256_value(
            [
                VERSION,
                to_plain(self.data.description),
                self.data.sha256,
                model.sha256,
                model.tokenizer.sha256,
                [settings, config.batch_tokens, *self._stop_ids(context).values()],
                model.chat.sha256 if settings["chat"] else "",
                "" if pack is None else sha256_file(pack / MANIFEST),
            ]
        )

    def _stop_ids(self, context: TaskContext) -> dict[str, list[int]]:
        """The ids that end an answer; {} for a task without answers."""
        written = self.data.description.kind in GENERATED
        return {"stop_ids": sorted(context.model.stop_ids)} if written else {}

    def run(self, model: Decoder, tokenizer: Tokenizer, context: TaskContext) -> TaskResult:
        """Score every item that an earlier, killed run did not score.

        Raises   DataError when no item can be asked; ConfigError as `choose_examples` and the scoring,
                 and for questions of a language without examples.
        """
        config, described = context.config, self.data.description
        if config.shots and described.kind == "perplexity":
            raise ConfigError(
                f"shots = {config.shots}, and {self.name} scores whole texts",
                where="evaluate.shots",
                fix="Set shots=0",
            )
        data = replace(self.data, limit=config.limit)
        examples = choose_examples(data, config.shots, config.shots_seed)
        identity, settings = self.identity(context), self.settings(config)
        total, without = 0, set()
        for item in read_items(data):
            total += 1
            if config.shots and isinstance(item, TaskItem):
                without |= {first_group(item.groups)} - examples.keys()
        if without:
            raise ConfigError(
                f"shots = {config.shots}, and split {described.shots_split!r} of {self.name} has no "
                f"examples for {', '.join(map(repr, sorted(without)[:8]))}",
                where="evaluate.shots",
                fix="Add examples, leave these items out, or set shots=0",
            )
        size = GENERATED_BLOCK if described.kind in GENERATED else BLOCK
        stem = self.result_name(config, config)
        file = ItemFile(context.folder / f".{stem}.jsonl", f"{identity} {size}")
        scorer = ItemScorer(described, context, examples)
        context.progress.begin(stem, total, "items")
        done = 0
        for number, block in enumerate(blocks_of(read_items(data), size)):
            if number >= file.blocks:
                file.append(scorer.lines(block))
            done += len(block)
            context.progress.advance(done)
        context.progress.end(f"{total:,} items")
        main = described.main_metric
        summary = ItemSummary(
            main,
            has_majority=main not in ("log_prob", "bits_per_byte", PROBABILITY)
            and described.kind != "minimal_pairs",
            cluster=described.cluster,
        )
        summary.read(lambda: read_lines(ItemLine, file.path))
        if not summary.items:
            raise DataError(
                f"{self.data.data} has no item that can be asked: "
                f"{_reasons(summary.rejected, described.split)}",
                where=f"task {self.name}",
                fix="Correct the fields that the description names",
            )
        contamination = contamination_of(data, context.pack)
        return TaskResult(
            metrics=summary.metrics(),
            num_items=summary.items,
            item_file=file,
            details={
                "identity": identity,
                "kind": described.kind,
                "metric": main,
                "source": described.source,
                "license": described.license,
                "data_sha256": self.data.sha256,
                "settings_sha256": sha256_value([VERSION, to_plain(described), settings]),
                **settings,
                **self._stop_ids(context),
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
        asked: list[tuple[TaskItem, list[ScoringRequest]]] = []
        for item in items:
            requests = self._requests(item)
            if max(len(y) for request in requests for y in request.continuations) > self._limit:
                lines[item.line] = {"line": item.line, "rejected": TOO_LONG}
            else:
                asked.append((item, requests))
        scores = iter(self._scores([request for _, requests in asked for request in requests]))
        choices: list[list[int]] = []
        alone: list[list[Score]] = [[] for _ in asked]
        if self._described.kind == "multiple_choice" and not self._described.blank:
            begin = self._model.context_ids("")
            alone = self._scores(
                [ScoringRequest(begin, request.continuations) for _, (request,) in asked]
            )
        for (item, requests), free in zip(asked, alone, strict=True):
            scored = [score for _ in requests for score in next(scores)]
            line = self._begun(item, requests)
            if self._described.kind == "cloze":
                values = {"acc": float(scored[0].greedy), "log_prob": scored[0].log_prob}
                answer = answer_key(self._described, item)
                lines[item.line] = {
                    **line, "values": values, "tokens": scored[0].tokens, "answer": answer
                }  # fmt: skip
            else:
                encode = self._model.tokenizer.encode
                choices = (
                    [encode(choice) for choice in item.choices]
                    if self._described.blank
                    else requests[0].continuations
                )
                lines[item.line] = {**line, **self._choice(item, choices, scored, free)}
        return lines

    def _choice(
        self, item: TaskItem, ids: list[list[int]], scored: list[Score], free: list[Score]
    ) -> Mapping[str, Any]:
        log_probs = [score.log_prob for score in scored]
        alone = [score.log_prob for score in free] or None
        by_metric = {"acc": log_probs}
        if not self._described.blank:
            by_metric |= {
                "acc_norm": [p / len(c) for p, c in zip(log_probs, item.choices, strict=True)],
                "acc_bytes": [
                    p / len(c.encode()) for p, c in zip(log_probs, item.choices, strict=True)
                ],
                "acc_token": [score.log_prob / score.tokens for score in scored],
            }
        if alone is not None:
            by_metric["acc_pmi"] = [p - q for p, q in zip(log_probs, alone, strict=True)]
        if self._described.kind == "minimal_pairs":
            by_metric = {name: by_metric[name] for name in ("acc", "acc_token")}
        values = {
            name: credit(choice_scores, item.label) for name, choice_scores in by_metric.items()
        }
        blind = blind_credits(item.choices, ids, item.label, alone, self._unigram)
        if self._described.main_metric == PROBABILITY:
            values, blind = {PROBABILITY: share_of_probability(log_probs, item.rights)}, {}
        return {
            "chance": len(item.rights) / len(item.choices),
            "label": item.label,
            "texts": [sha256_bytes(choice.encode())[:16] for choice in item.choices],
            "values": values,
            "blind": blind,
            "solved_blind": [name for name, value in blind.items() if value == 1.0],
            "log_probs": log_probs,
            "tokens": [score.tokens for score in scored],
            "unconditional": alone,
        }

    def _generated(self, items: Sequence[TaskItem]) -> dict[int, Mapping[str, Any]]:
        described = self._described
        contexts = [self._context_ids(item) for item in items]
        # The context of a small model may not hold the longest answer of a large one.
        new_tokens = min(described.max_new_tokens, self._limit // 2)
        outputs = generate_until(self._model, contexts, described.until, new_tokens)
        room = self._limit - new_tokens
        return {
            item.line: {
                **self._begun(item, ()),
                "truncated": len(context) > room,
                **answer_values(described, item, output),
                "answer": answer_key(described, item),
                "output": output[:_LONGEST_OUTPUT],
            }
            for item, context, output in zip(items, contexts, outputs, strict=True)
        }

    def _rolling(self, items: Sequence[TaskItem]) -> dict[int, Mapping[str, Any]]:
        texts = [item.answer for item in items]
        log_probs = loglikelihood_rolling(
            self._model,
            texts,
            self._config.batch_tokens,
            begin_twice=self._config.rolling == "harness",
        )
        lines: dict[int, Mapping[str, Any]] = {}
        for item, log_prob in zip(items, log_probs, strict=True):
            size = len(item.answer.encode())
            bits = -log_prob / math.log(2) / size
            values = {"bits_per_byte": bits}
            lines[item.line] = {**self._begun(item, ()), "weight": float(size), "values": values}
        return lines

    def _begun(self, item: TaskItem, requests: Sequence[ScoringRequest]) -> dict[str, Any]:
        cut = any(
            len(request.context) + max(map(len, request.continuations)) - 1 > self._limit
            for request in requests
        )
        return {
            "line": item.line,
            "id": item.name,
            "groups": dict(item.groups),
            "cluster": item.cluster,
            "truncated": cut,
        }

    def _requests(self, item: TaskItem) -> list[ScoringRequest]:
        """The question with its choices; with a blank, a question for each choice in its place."""
        texts = item.choices or (item.answer,)
        if self._config.chat and self._described.has_chat_form:
            encode = self._model.tokenizer.encode
            continuations = [encode(text.strip()) for text in texts]
            return [ScoringRequest(self._context_ids(item), continuations)]
        before = self._before(item)
        if self._described.blank:
            blank_start = len(before) - len(item.context) + item.blank
            after = before[blank_start + len(self._described.blank) :]
            pairs = [self._model.encode_pair(before[:blank_start] + text, after) for text in texts]
            return [ScoringRequest(context, [y]) for context, y in pairs]
        between = self._described.delimiter if item.context else ""
        if self._described.kind == "cloze":
            between = ""  # the context ends with the white space
        pairs = [self._model.encode_pair(before, between + text) for text in texts]
        return [ScoringRequest(pairs[0][0], [y for _, y in pairs])]

    def _context_ids(self, item: TaskItem) -> list[int]:
        if self._config.chat:
            shots = self._examples.get(first_group(item.groups), ())
            return self._model.chat_ids(shots, item.context)
        return self._model.context_ids(self._before(item))

    def _before(self, item: TaskItem) -> str:
        """The context behind its examples, two line breaks between them."""
        shots = self._examples.get(first_group(item.groups), ())
        between = "" if self._described.blank else self._described.delimiter
        answered = [f"{asked}{between}{answer}" for asked, answer in shots]
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
                right = any(is_right(described, output, answer) for answer in item.accepted)
        except TimeoutError:
            none = {"acc": 0.0, described.main_metric: 0.0}
            return {"values": none, "unanswered": True}
        overlap = OVERLAPS.get(described.metric)
        more = {} if overlap is None else {described.metric: overlap(output, item.accepted)}
        return {"values": {"acc": float(right), **more}}
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
    given, right = found_text.strip(), answer.strip()
    return (given.casefold() == right.casefold()) if described.ignore_case else given == right


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


def share_of_probability(log_probs: Sequence[float], rights: Sequence[int]) -> float:
    """The probability of the right choices, where those of all choices add up to 1: MC2 of TruthfulQA.

    Source   Lin et al. 2022, TruthfulQA, arXiv 2109.07958
    """
    largest = max(log_probs)
    shares = [math.exp(log_prob - largest) for log_prob in log_probs]
    return math.fsum(shares[number] for number in rights) / math.fsum(shares)


def _reasons(rejected: Mapping[str, int], split: str) -> str:
    empty = f"it has none of split {split!r}" if split else "it is empty"
    return ", ".join(f"{count:,} {reason}" for reason, count in rejected.items()) or empty
