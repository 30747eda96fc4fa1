"""The page about a search: verdict, confirmations, rounds, and every candidate with its reasons."""

from __future__ import annotations

from pathlib import Path

from stamm.base.files import write_text
from stamm.base.schema import read_record
from stamm.reports.config import ReportConfig
from stamm.reports.figure import DataTable
from stamm.reports.formatting import ABSENT, fixed, signed
from stamm.reports.html import fill
from stamm.reports.page import page_of
from stamm.reports.run_data import collect
from stamm.reports.search_result import RESULT, costs, screened
from stamm.reports.text import one_line
from stamm.runs.schemas.search import RoundResult, SearchFile

SEARCH_PAGE = TEMPLATE = "search.html"
_DIGITS = 4
_LONGEST = 160


def write_search(root: Path, out: Path, config: ReportConfig) -> SearchFile:
    """Write the page about the search in `root` to `out`; return its result so far."""
    result = read_record(SearchFile, root / RESULT)
    write_text(out, render_search(root, result, config))
    return result


def render_search(root: Path, result: SearchFile, config: ReportConfig) -> str:
    """The page as HTML text; the template engine escapes every value."""
    study = collect(root)
    page = page_of(study, config)
    context = {
        "study": study,
        "page": page,
        "title": one_line(config.title, 200) or one_line(study.recipe, 120),
        "contents": (
            ("verdict", "Verdict"),
            ("rounds", "Rounds"),
            ("candidates", "Candidates"),
            ("again", "Doing it again"),
        ),
        "result": result,
        "confirmations": confirmation_table(result),
        "rounds": [(f"Round {n}", round_table(one)) for n, one in enumerate(result.rounds, 1)],
        "candidates": candidate_table(root),
    }
    return fill(TEMPLATE, context, excerpt_characters=config.excerpt_characters)


def confirmation_table(result: SearchFile) -> DataTable:
    """The finalist against the baseline, a row for each confirmation."""
    return DataTable(
        columns=(
            "confirmation", "equal", "result", "parameters", "difference, bits per byte",
            "interval, low", "high", "p, corrected",
        ),
        rows=tuple(
            (
                one_line(one.name, 40),
                one.matched,
                "better" if one.better else "not shown to be better",
                ABSENT if one.parameters is None else f"{one.parameters:,}",
                *(_signed(value) for value in (one.difference, one.low, one.high)),
                ABSENT if one.p_value is None else f"{one.p_value:.2g}",
            )
            for one in result.confirmations
        ),
        words=3,
        note="Below zero is better. Seeds and texts are not those of the search.",
    )  # fmt: skip


def round_table(one: RoundResult) -> DataTable:
    """The ranking of a round."""
    return DataTable(
        columns=(
            "candidate", "decision", "difference, bits per byte", "interval, low", "high",
        ),
        rows=tuple(
            (
                one_line(ranked.name, 40),
                "kept" if ranked.kept else "dropped",
                *(_signed(value) for value in (ranked.difference, ranked.low, ranked.high)),
            )
            for ranked in one.ranking
        ),
        words=2,
        note=f"{one.seeds} seeds; the comparison is in {one_line(one.folder, 60)}.",
    )  # fmt: skip


def candidate_table(root: Path) -> DataTable:
    """Every candidate: its gradient, what it is known as, its cost, and why it was not trained."""
    measured = costs(root)
    base = measured.seconds[measured.baseline]
    rows = []
    for one in screened(root):
        seconds = measured.seconds.get(one.name)
        slow = seconds is not None and one.name not in measured.passed
        why = "; ".join(one.reasons) or ("too slow" if slow else "trained")
        rows.append(
            (
                one_line(one.name, 40),
                one_line("; ".join(one.gradient), _LONGEST) or ABSENT,
                one_line(why, _LONGEST),
                one_line("; ".join(one.known), _LONGEST) or "none",
                fixed(one.nonlinearity, 2),
                ABSENT if seconds is None else f"{seconds / base:.2f}",
            )
        )
    return DataTable(
        columns=(
            "candidate", "gradient", "screen", "known functions", "nonlinearity, share",
            f"time, {one_line(measured.baseline, 20)} = 1",
        ),
        rows=tuple(rows),
        words=4,
        note="Nonlinearity: the share of the variance under N(0, 1) that no line explains. Time of forward and "
        f"backward pass in float32 on {one_line(measured.processor, 60)}.",
    )  # fmt: skip


def _signed(value: float | None) -> str:
    return ABSENT if value is None else signed(value, _DIGITS)
