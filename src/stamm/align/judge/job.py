"""Jobs of a judge: its validation, and the rating of answers by a charter.

validate   leaves judge.json (schema JudgeFile), requests.jsonl (its replies)
run        leaves ratings.jsonl (schema RatingLine), rewards.jsonl (the rows with "reward", "rank",
           "rating" and "group_size"), summary.json (schema CharterSummary), bad_rows.jsonl, requests.jsonl

Both resume from requests.jsonl: what is in it is not asked again. `run` reads the folder of
`validate`, if any, as the input "judge".

Checked  tests/cli/test_charter_command.py
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from stamm.align.judge.charter import WORDING, read_charter, shipped
from stamm.align.judge.config import CharterConfig, Connection, EndpointJudge, LocalJudge
from stamm.align.judge.endpoint import EndpointModel, JudgeBudget, api_key
from stamm.align.judge.judge import (
    RATING,
    REPLIES,
    AnswerStore,
    Judge,
    JudgeModel,
    JudgeReply,
    JudgeRequest,
    NoReply,
    Received,
    Unrated,
    replies_of,
)
from stamm.align.judge.rating import (
    AnswerFile,
    AnswerRating,
    first_preferred,
    rank_answers,
    rate,
    read_answers,
    reward,
)
from stamm.align.judge.validation import read_chains, validate_judge
from stamm.align.records import CharterSummary, JudgeFile, OrderedShare
from stamm.base.errors import DataError, RunError
from stamm.base.files import sha256_file, write_lines
from stamm.base.known_keys import UnknownKeys
from stamm.base.schema import write_record
from stamm.chat.conversation import AssistantTurn, Conversation, Response, UserTurn
from stamm.models.loading import OpenModel, open_model
from stamm.runs.job import Workspace


class LocalModel:
    """A JudgeModel that computes its replies."""

    def __init__(self, model: OpenModel) -> None:
        self._model = model
        self._digit_ids = _digit_ids(model)
        self.identity: Mapping[str, object] = {
            "kind": "local",
            "weights_sha256": model.sha256,
            "chat_format_sha256": model.chat.sha256,
            "wording": WORDING,
        }

    @torch.no_grad()
    def answer(self, requests: Sequence[JudgeRequest], received: Received) -> None:
        """As JudgeModel.answer."""
        decoder = self._model.decoder
        limit = decoder.config.max_context
        for index, request in enumerate(requests):
            ids = self._encode(request)
            if len(ids) > limit:
                reason = f"{len(ids):,} tokens exceed the judge's context of {limit:,}"
                received(index, NoReply(reason))
                continue
            hidden_BTD = decoder.model(torch.tensor([ids]))
            logits_V = decoder.lm_head(hidden_BTD[0, -1]).double()
            probability_V = logits_V.softmax(-1)
            probabilities = {
                digit: float(probability_V[self._digit_ids[digit]]) for digit in request.digits
            }
            text = self._model.chat.decode([int(logits_V.argmax())])
            received(index, JudgeReply(probabilities, text[:200], len(ids), 1))

    def _encode(self, request: JudgeRequest) -> list[int]:
        turns = (UserTurn(request.user),)
        conversation = Conversation(turns=turns, system=request.system)
        return self._model.chat.encode(conversation, prompt=True).ids


def load_local_judge(config: LocalJudge) -> LocalModel:
    """The judge of a configuration."""
    return LocalModel(open_model(config.model, config.arm or None, chat=True))


def _digit_ids(model: OpenModel) -> dict[str, int]:
    """Id of the first token of an answer that is one digit, by digit."""

    def first_of(text: str) -> int:
        turns = (UserTurn("?"), AssistantTurn((Response(text),)))
        prompt = model.chat.encode(Conversation(turns=turns[:1]), prompt=True).ids
        return model.chat.encode(Conversation(turns=turns)).ids[len(prompt)]

    ids = {digit: first_of(digit) for digit in RATING}
    if len(set(ids.values())) < len(RATING):
        raise DataError(
            "the judge's tokenizer begins several of the digits 1 to 9 with the same token",
            fix="Use another judge",
        )
    return ids


JUDGE, SUMMARY = "judge.json", "summary.json"
RATINGS, REWARDS, BAD_ROWS = "ratings.jsonl", "rewards.jsonl", "bad_rows.jsonl"


def validate(config: CharterConfig, workspace: Workspace) -> None:
    """Validate the judge on chains of progressively degraded answers, and write judge.json.

    Raises   RunError when it orders less than `validation.min_ordered` of the pairs rightly
    """
    settings = config.validation
    assert settings is not None
    charter = read_charter(shipped(config.charter, "charter"))
    numbers = settings.articles or (charter.articles[0].number,)
    articles = charter.chosen(numbers, "validation.articles")
    good = shipped(settings.good_answers, "validation.good_answers")
    chains, skipped = read_chains(good, settings)
    with _open(config, workspace) as (judge, store):
        measured = validate_judge(judge, articles, chains, settings)
        store.sort()
    shares = [("ratings", measured["pointwise_all"])]
    if compared := measured.get("pairwise_all", measured.get("pairwise_adjacent")):
        shares.append(("comparisons", compared))
    low = [
        (name, ordered)
        for name, ordered in shares
        if ordered["right"] < settings.min_ordered * ordered["pairs"]
    ]
    write_record(
        workspace.folder / JUDGE,
        JudgeFile,
        {
            "judge": judge.identity,
            "identity_sha256": judge.identity_sha256,
            "charter": charter.title,
            "charter_sha256": charter.sha256,
            "articles": [article.number for article in articles],
            "good_answers_sha256": sha256_file(good),
            "chains": len(chains),
            "skipped": skipped,
            **measured,
            **_reply_counts(store),
            "min_ordered": settings.min_ordered,
            "passed": not low,
        },
    )
    shown = "; ".join(f"{name} {_ordered(ordered)}" for name, ordered in shares)
    workspace.progress.log(f"Pairs of degraded answers ordered rightly: {shown}.")
    if low:
        name, ordered = low[0]
        raise RunError(
            f"the judge cannot tell good answers from degraded ones: its {name} order "
            f"{_ordered(ordered)} pairs rightly, validation.min_ordered = {settings.min_ordered:g}",
            where=str(workspace.folder / JUDGE),
            fix="Use a better judge; validation.min_ordered=0 runs it all the same, in another folder",
        )


def run(config: CharterConfig, workspace: Workspace) -> None:
    """Rate the answers, order the best of each prompt, and write their rewards.

    Raises   DataError when the charter or the answers cannot be read, RunError when too many answers
             have no rating, or the judge cannot be asked
    """
    charter = read_charter(shipped(config.charter, "charter"))
    articles = charter.chosen(config.rating.articles, "rating.articles")
    path = Path(config.answers)
    file = read_answers(path)
    unrated = Unrated()
    validated = workspace.inputs.get("judge")
    with _open(config, workspace, validated) as (judge, store):
        ratings = rate(judge, articles, file.answers, config.rating, unrated)
        ranks, comparisons = rank_answers(judge, articles, file.answers, ratings, config.rating)
        store.sort()
    folder = workspace.folder
    _write_ratings(folder / RATINGS, file, ratings, unrated, judge.identity_sha256)
    lone = _write_rewards(folder / REWARDS, file, ratings, ranks)
    write_lines(folder / BAD_ROWS, (vars(row) for row in file.bad))
    rated = [rating for rating in ratings if rating is not None]
    write_record(
        folder / SUMMARY,
        CharterSummary,
        {
            "judge": judge.identity,
            "identity_sha256": judge.identity_sha256,
            "charter": charter.title,
            "charter_sha256": charter.sha256,
            "articles": {str(article.number): article.title for article in articles},
            "input": {"path": config.answers, "sha256": sha256_file(path)},
            "ratings": {"path": RATINGS, "sha256": sha256_file(folder / RATINGS)},
            "rewards": {"path": REWARDS, "sha256": sha256_file(folder / REWARDS)},
            "rows": len(file.answers),
            "bad_rows": len(file.bad),
            "rated": len(rated),
            "unrated": unrated.counts(),
            "prompts": file.num_prompts,
            "lone_prompts": lone,
            "comparisons": comparisons.asked,
            "failed_comparisons": comparisons.failed,
            "first_preferred": first_preferred(comparisons.replies),
            "article_means": {
                str(a.number): math.fsum(rating.scores[a.number] for rating in rated) / len(rated)
                for a in articles
                if rated
            },
            **_reply_counts(store),
        },
    )
    unrated_note = f", {len(unrated.reasons)} unrated" if unrated.reasons else ""
    alone = f"; {lone} prompts have a single rated answer" if lone else ""
    workspace.progress.log(
        f"{len(rated):,} answers to {file.num_prompts:,} prompts rated{unrated_note}{alone}."
    )


@contextlib.contextmanager
def _open(
    config: CharterConfig, workspace: Workspace, earlier: Path | None = None
) -> Iterator[tuple[Judge, AnswerStore]]:
    """The judge and its store.

    earlier   folder of the validation, whose costs count in the budget
    """
    settings = config.judge
    path = workspace.folder / REPLIES
    recorded = (Path(settings.recorded),) if settings.recorded else ()
    paid = replies_of(path) + (replies_of(earlier / REPLIES) if earlier else [])
    connection = settings.connection if isinstance(settings, EndpointJudge) else Connection()
    if isinstance(settings, LocalJudge):
        model: JudgeModel = load_local_judge(settings)
    else:
        model = EndpointModel(settings, api_key(connection), JudgeBudget(connection, paid))
    with AnswerStore(path, recorded) as store:
        yield (
            Judge(
                model,
                store,
                workspace.progress,
                min_digit_mass=config.rating.min_digit_mass,
                max_unrated=config.rating.max_unrated,
            ),
            store,
        )
        if sentence := _unknown(store).sentence("replies of the judge"):
            workspace.progress.log(sentence)


def _write_ratings(
    path: Path,
    file: AnswerFile,
    ratings: Sequence[AnswerRating | None],
    unrated: Unrated,
    identity: str,
) -> None:
    lines = []
    for item, (answer, rating) in enumerate(zip(file.answers, ratings, strict=True)):
        line: dict[str, Any] = {
            "file": answer.origin.file,
            "row": answer.origin.row,
            "id": answer.origin.id,
            "prompt": answer.prompt,
        }
        if rating is None:
            line["reason"] = unrated.reasons[item]
        else:
            line["scores"] = {str(number): score for number, score in rating.scores.items()}
            line["masses"] = {str(number): mass for number, mass in rating.masses.items()}
            line["mean"] = rating.mean
        lines.append({**line, "judge": identity})
    write_lines(path, lines)


def _write_rewards(
    path: Path,
    file: AnswerFile,
    ratings: Sequence[AnswerRating | None],
    ranks: Sequence[float | None],
) -> int:
    """Write the rated rows with their rewards; the number of prompts with a single one.

    `ref_rewards` of a row belong to another reward and are left out.
    """
    sizes: dict[int, int] = {}
    for answer, rank in zip(file.answers, ranks, strict=True):
        sizes[answer.prompt] = sizes.get(answer.prompt, 0) + (rank is not None)
    lines = []
    for answer, rating, rank in zip(file.answers, ratings, ranks, strict=True):
        if rating is None or rank is None:
            continue
        size = sizes[answer.prompt]
        lines.append(
            {
                **{name: v for name, v in answer.row.items() if name != "ref_rewards"},
                "reward": reward(rank, size),
                "rank": rank,
                "rating": rating.mean,
                "group_size": size,
            }
        )
    write_lines(path, lines)
    return sum(size == 1 for size in sizes.values())


def _reply_counts(store: AnswerStore) -> dict[str, Any]:
    return {
        "replies": len(store.replies),
        "prompt_tokens": sum(reply.prompt_tokens for reply in store.replies),
        "completion_tokens": sum(reply.completion_tokens for reply in store.replies),
        "unknown_keys": _unknown(store).counts(),
    }


def _unknown(store: AnswerStore) -> UnknownKeys:
    unknown = UnknownKeys()
    for reply in store.replies:
        unknown.add(reply.unknown_keys)
    return unknown


def _ordered(share: dict[str, Any]) -> str:
    ordered = OrderedShare(**share)
    return f"{ordered.share:.1%} ({ordered.low:.1%} to {ordered.high:.1%}) of {ordered.pairs:,}"
