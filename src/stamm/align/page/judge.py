"""Section about a judge and its ratings by a charter.

Reads judge/judge.json and charter/summary.json of a run folder (schemas in align/records.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stamm.align.records import CharterSummary, JudgeFile, OrderedShare
from stamm.base.schema import read_record_if_present
from stamm.pages.figure import DataTable
from stamm.pages.formatting import fixed, percent
from stamm.pages.text import one_line

_MOST_ROWS = 100
_DEPENDENT = (
    "Intervals are 95 % Wilson intervals over pairs; pairs of one chain share their answers, so that "
    "the true uncertainty is larger."
)


@dataclass(frozen=True, kw_only=True)
class JudgeSection:
    """Sentences about a judge, the most important first, and tables, some without rows.

    ordered    shares of pairs of degraded answers ordered rightly; without rows: not validated
    steps      mean rating at each step of degradation
    articles   mean rating of the answers by article; without rows: nothing was rated
    unrated    answers, texts and comparisons without a result, by reason
    identity   all that decides the judge's replies
    """

    sentences: tuple[str, ...]
    tables: Mapping[str, DataTable]

    def text(self) -> str:
        """The sentences as lines for a terminal."""
        return "\n".join(self.sentences)


def judge_section(run_folder: Path) -> JudgeSection | None:
    """The section about the judge of a run; None for a run without one.

    Raises   DataError when a file is malformed
    """
    judged = read_record_if_present(JudgeFile, run_folder / "judge" / "judge.json")
    rated = read_record_if_present(CharterSummary, run_folder / "charter" / "summary.json")
    latest = rated or judged
    if latest is None:
        return None
    return JudgeSection(
        sentences=(*_validation_sentences(judged), *_rating_sentences(rated)),
        tables={
            "ordered": DataTable(
                columns=("by", "pairs", "right", "95 % interval", "ties", "number of pairs"),
                rows=tuple(_ordered(judged)) if judged else (),
                words=2,
                note=f"{judged.chains:,} chains of {len(judged.steps)} answers. A tie is not right."
                if judged
                else "",
            ),
            "steps": DataTable(
                columns=("degradation applied last", "mean rating", "texts rated"),
                rows=tuple(
                    (_cell(step.name), fixed(step.mean_rating, 2), f"{step.rated:,}")
                    for step in (judged.steps if judged else ())
                ),
                note="Each text is made from the one above it.",
            ),
            "articles": DataTable(
                columns=("article", "mean rating"),
                rows=tuple(
                    (_cell(f"{number}. {title}"), fixed(rated.article_means.get(number), 2))
                    for number, title in list(rated.articles.items())[:_MOST_ROWS]
                )
                if rated
                else (),
            ),
            "unrated": DataTable(
                columns=("of", "reason", "number"),
                rows=tuple(
                    (subject, _cell(reason), f"{number:,}")
                    for subject, reason, number in [*_unrated(judged, rated)][:_MOST_ROWS]
                ),
                words=2,
            ),
            "identity": DataTable(
                columns=("what", "value"),
                rows=tuple(
                    (one_line(name, 60), one_line(_plain(value), 200))
                    for name, value in list(latest.judge.items())[:_MOST_ROWS]
                    if value is not None
                ),
                words=2,
            ),
        },
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
    return f"{percent(share.share)} ({_interval(share)})" if share.pairs else "none"


def _interval(share: OrderedShare) -> str:
    return f"{percent(share.low)} to {percent(share.high)}"


def _ordered(judged: JudgeFile) -> Iterator[tuple[str, ...]]:
    for by, which, ordered in (
        ("ratings", "all pairs of a chain", judged.pointwise_all),
        ("ratings", "adjacent steps", judged.pointwise_adjacent),
        ("comparisons", "all pairs of a chain", judged.pairwise_all),
        ("comparisons", "adjacent steps", judged.pairwise_adjacent),
    ):
        if ordered is not None and ordered.pairs:
            yield (
                by,
                which,
                percent(ordered.share),
                _interval(ordered),
                f"{ordered.ties:,}",
                f"{ordered.pairs:,}",
            )


def _unrated(
    judged: JudgeFile | None, rated: CharterSummary | None
) -> Iterator[tuple[str, str, int]]:
    if judged:
        yield from (("validation", reason, count) for reason, count in judged.unrated.items())
    if rated:
        yield from (("answers", reason, count) for reason, count in rated.unrated.items())
        if rated.failed_comparisons:
            yield "comparisons", "decided by the ratings", rated.failed_comparisons
        if rated.bad_rows:
            yield "rows", "not readable", rated.bad_rows


def _cell(text: str) -> str:
    return one_line(text, 120)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
