"""The page about a search: verdict, confirmations, rounds, and every candidate with its reasons."""

from __future__ import annotations

from pathlib import Path

from stamm.base.files import write_text
from stamm.base.schema import read_record
from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable
from stamm.pages.formatting import ABSENT, fixed, signed
from stamm.pages.frame import fill
from stamm.pages.text import one_line
from stamm.runs.again import again_section
from stamm.runs.own_sections import own_sections
from stamm.runs.run_view import open_view
from stamm.search.records import RoundResult, SearchFile
from stamm.search.result import RESULT, costs, screened

SEARCH_PAGE = TEMPLATE = "search.html"
PACKAGE = "stamm.search"
_DIGITS = 4
_LONGEST = 160


def write_search(root: Path, out: Path, config: ReportConfig) -> SearchFile:
    """Write the page about the search in `root` to `out`; return its result so far."""
    result = read_record(SearchFile, root / RESULT)
    write_text(out, render_search(root, result, config))
    return result


def render_search(root: Path, result: SearchFile, config: ReportConfig) -> str:
    """The page as HTML text; the template engine escapes every value."""
    run = open_view(root)
    contents = (("verdict", "Verdict"), ("rounds", "Rounds"), ("candidates", "Candidates"))
    own = own_sections(run, config, [key for key, _ in contents])
    ending = (*own, again_section(run, config))
    context = {
        "run": run,
        "title": one_line(config.title, 200) or one_line(run.recipe, 120),
        "contents": (*contents, *((section.key, section.title) for section in ending)),
        "ending": ending,
        "result": result,
        "confirmations": confirmation_table(result),
        "rounds": [
            (f"Round {n}", round_table(search_round))
            for n, search_round in enumerate(result.rounds, 1)
        ],
        "candidates": candidate_table(root),
    }
    page = fill(TEMPLATE, context, PACKAGE, excerpt_characters=config.excerpt_characters)
    return str(page)


def confirmation_table(result: SearchFile) -> DataTable:
    """The finalist against the baseline, a row for each confirmation."""
    return DataTable(
        columns=(
            "confirmation", "equal", "result", "parameters", "difference, bits per byte",
            "interval, low", "high", "p, corrected",
        ),
        rows=tuple(
            (
                one_line(confirmation.name, 40),
                confirmation.matched,
                "better" if confirmation.better else "not shown to be better",
                ABSENT if confirmation.parameters is None else f"{confirmation.parameters:,}",
                *(_signed(value) for value in (confirmation.difference, confirmation.low, confirmation.high)),
                ABSENT if confirmation.p_value is None else f"{confirmation.p_value:.2g}",
            )
            for confirmation in result.confirmations
        ),
        words=3,
        note="Below zero is better. Seeds and texts are not those of the search.",
    )  # fmt: skip


def round_table(search_round: RoundResult) -> DataTable:
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
            for ranked in search_round.ranking
        ),
        words=2,
        note=f"{search_round.seeds} seeds; the comparison is in {one_line(search_round.folder, 60)}.",
    )  # fmt: skip


def candidate_table(root: Path) -> DataTable:
    """Every candidate: its gradient, what it is known as, its cost, and why it was not trained."""
    measured = costs(root)
    base = measured.seconds[measured.baseline]
    rows = []
    for candidate in screened(root):
        seconds = measured.seconds.get(candidate.name)
        slow = seconds is not None and candidate.name not in measured.passed
        why = "; ".join(candidate.reasons) or ("too slow" if slow else "trained")
        rows.append(
            (
                one_line(candidate.name, 40),
                one_line("; ".join(candidate.gradient), _LONGEST) or ABSENT,
                one_line(why, _LONGEST),
                one_line("; ".join(candidate.known), _LONGEST) or "none",
                fixed(candidate.nonlinearity, 2),
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
