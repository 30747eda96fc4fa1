"""Section about a judge and its ratings by a charter.

Reads judge/judge.json and charter/summary.json of a run folder (schemas in runs/schemas/judge.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stamm.base.schema import read_record_if_present
from stamm.reports.figure import DataTable
from stamm.reports.formatting import fixed, percent
from stamm.reports.text import one_line
from stamm.runs.schemas.judge import CharterSummary, JudgeFile, OrderedShare

_LONGEST_CELL = 120
_MOST_ROWS = 100
_DEPENDENT = (
    "Intervals are 95 % Wilson intervals over pairs; pairs of one chain share their answers, so that "
    "the true uncertainty is larger."
)


@dataclass(frozen=True, kw_only=True)
class JudgeSection:
    """Sentences and tables about a judge.

    sentences   findings, most important first
    ordered     shares of pairs of degraded answers ordered rightly; without rows: not validated
    steps       mean rating at each step of degradation
    articles    mean rating of the answers by article; without rows: nothing was rated
    unrated     answers, texts and comparisons without a result, by reason
    identity    all that decides the judge's replies
    """

    sentences: tuple[str, ...]
    ordered: DataTable
    steps: DataTable
    articles: DataTable
    unrated: DataTable
    identity: DataTable

    def text(self) -> str:
        """The sentences as lines for a terminal."""
        return "\n".join(self.sentences)


def judge_section(run_folder: Path) -> JudgeSection | None:
    """The section about the judge of a run; None for a run without one.

    Raises   DataError when a file is malformed
    """
    judged = read_record_if_present(JudgeFile, run_folder / "judge" / "judge.json")
    rated = read_record_if_present(CharterSummary, run_folder / "charter" / "summary.json")
    if judged is None and rated is None:
        return None
    identity = rated.judge if rated is not None else judged.judge if judged is not None else {}
    return JudgeSection(
        sentences=(*_validation_sentences(judged), *_rating_sentences(rated)),
        ordered=_ordered_table(judged),
        steps=_steps_table(judged),
        articles=_articles_table(rated),
        unrated=_unrated_table(judged, rated),
        identity=_identity_table(identity),
    )


def _validation_sentences(judged: JudgeFile | None) -> tuple[str, ...]:
    if judged is None:
        return ("The judge was not validated: whether its ratings mean anything is not known.",)
    compared = judged.pairwise_all or judged.pairwise_adjacent
    lead = (
        f"The judge orders {_share(judged.pointwise_all)} of the pairs of degraded answers rightly "
        "by its ratings"
    )
    lead += f", and {_share(compared)} by comparisons." if compared else "."
    sentences = [lead, _DEPENDENT]
    if not judged.passed:
        sentences.append(
            f"It does not reach the {percent(judged.min_ordered, 0)} that this run demands."
        )
    if judged.first_preferred is not None:
        sentences.append(
            f"In comparisons it gives {percent(judged.first_preferred)} to the answer presented "
            "first. Every pair is asked for in both orders, so that this preference cancels."
        )
    return tuple(sentences)


def _rating_sentences(rated: CharterSummary | None) -> tuple[str, ...]:
    if rated is None:
        return ("No answers were rated yet.",)
    lead = (
        f"{rated.rated:,} of {rated.rows:,} answers to {rated.prompts:,} prompts were rated from 1 "
        f"to 9 by {len(rated.articles)} articles of {one_line(rated.charter, 60)}"
    )
    lead += (
        f"; {rated.comparisons:,} pairs of the best were compared." if rated.comparisons else "."
    )
    alone = (
        f"{rated.lone_prompts:,} prompts have a single rated answer, whose reward holds no "
        "information.",
    )
    unknown = ", ".join(
        f"{one_line(key, 60)} ({count:,})" for key, count in list(rated.unknown_keys.items())[:12]
    )
    keys = (f"Keys of the judge's replies with unknown meaning: {unknown}.",)
    return (lead, *(alone if rated.lone_prompts else ()), *(keys if unknown else ()))


def _share(share: OrderedShare) -> str:
    if not share.pairs:
        return "none"
    return f"{percent(share.share)} ({percent(share.low)} to {percent(share.high)})"


def _ordered_table(judged: JudgeFile | None) -> DataTable:
    shares = (
        [
            ("ratings", "all pairs of a chain", judged.pointwise_all),
            ("ratings", "adjacent steps", judged.pointwise_adjacent),
            ("comparisons", "all pairs of a chain", judged.pairwise_all),
            ("comparisons", "adjacent steps", judged.pairwise_adjacent),
        ]
        if judged
        else []
    )
    return DataTable(
        columns=("by", "pairs", "right", "95 % interval", "ties", "number of pairs"),
        rows=tuple(
            (
                by, which, percent(one.share), f"{percent(one.low)} to {percent(one.high)}",
                f"{one.ties:,}", f"{one.pairs:,}",
            )
            for by, which, one in shares
            if one is not None and one.pairs
        ),
        words=2,
        note=f"{judged.chains:,} chains of {len(judged.steps)} answers. A tie is not right."
        if judged
        else "",
    )  # fmt: skip


def _steps_table(judged: JudgeFile | None) -> DataTable:
    return DataTable(
        columns=("degradation applied last", "mean rating", "texts rated"),
        rows=tuple(
            (one_line(step.name, _LONGEST_CELL), fixed(step.mean_rating, 2), f"{step.rated:,}")
            for step in (judged.steps if judged else ())
        ),
        note="Each text is made from the one above it.",
    )


def _articles_table(rated: CharterSummary | None) -> DataTable:
    rows = [
        (one_line(f"{number}. {title}", _LONGEST_CELL), fixed(rated.article_means.get(number), 2))
        for number, title in (rated.articles.items() if rated else ())
        if rated
    ]
    return DataTable(columns=("article", "mean rating"), rows=tuple(rows[:_MOST_ROWS]))


def _unrated_table(judged: JudgeFile | None, rated: CharterSummary | None) -> DataTable:
    counts: list[tuple[str, str, int]] = []
    if judged:
        counts += [("validation", reason, n) for reason, n in judged.unrated.items()]
    if rated:
        counts += [("answers", reason, n) for reason, n in rated.unrated.items()]
        if rated.failed_comparisons:
            counts.append(("comparisons", "decided by the ratings", rated.failed_comparisons))
        if rated.bad_rows:
            counts.append(("rows", "not readable", rated.bad_rows))
    return DataTable(
        columns=("of", "reason", "number"),
        rows=tuple(
            (of, one_line(reason, _LONGEST_CELL), f"{n:,}") for of, reason, n in counts[:_MOST_ROWS]
        ),
        words=2,
    )


def _identity_table(identity: Mapping[str, object]) -> DataTable:
    return DataTable(
        columns=("what", "value"),
        rows=tuple(
            (one_line(name, 60), one_line(_plain(value), 200))
            for name, value in list(identity.items())[:_MOST_ROWS]
            if value is not None
        ),
        words=2,
    )


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
