"""Rankings of a search's rounds, and its verdict."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import pytest

from stamm.base.errors import RunError
from stamm.base.schema import write_record
from stamm.compare.verdict import ArmLine, Judgement
from stamm.search.records import (
    PLAN,
    CandidateFile,
    ConfirmationResult,
    PlannedCandidate,
    RoundResult,
    SearchPlanFile,
)
from stamm.search.result import ranking, round_result, search_result
from stamm.statistics.intervals import ConfidenceInterval, Difference
from tests.unit.compare.test_comparison import LOSSES, write_comparison


def _line(
    name: str, difference: tuple[float, float, float] | None, diverged: bool = False
) -> ArmLine:
    found = None
    if difference is not None:
        mean, low, high = difference
        found = Difference(
            name=name,
            interval=ConfidenceInterval(mean=mean, low=low, high=high, count=2),
            p_value=0.5,
            adjusted=0.5,
            shown=low > 0 or high < 0,
        )
    return ArmLine(
        name=name, number=0, activation=name, width=1, parameters=1, rate=1e-3, shape_factor=None, at_edge=False, factor_at_edge=False,
        diverged=(1,) if diverged else (), bits=None, nats=None, difference=found, log_tokens=None,
        flops=None, tokens=None, seconds=None, tuning_seconds=0.0,
    )  # fmt: skip


def _judged(*lines: ArmLine) -> Judgement:
    return Judgement(baseline="xielu", confidence=0.95, lines=lines, sentences=())


def test_the_worse_are_dropped_and_the_best_kept() -> None:
    judgement = _judged(
        _line("worse", (0.02, 0.01, 0.03)),
        _line("wide", (0.01, -0.5, 0.52)),
        _line("best", (-0.03, -0.05, -0.01)),
        _line("good", (-0.01, -0.04, 0.02)),
        _line("broken", (-1.0, -1.0, -1.0), diverged=True),
    )
    names = ["worse", "wide", "best", "good", "broken"]
    found = ranking(judgement, names, keep=2)
    assert [one.name for one in found] == ["best", "good", "wide", "worse", "broken"]
    assert [one.kept for one in found] == [True, True, False, False, False]
    # Fewer than `keep` are left when the others are shown to be worse, or diverged.
    assert [one.name for one in ranking(judgement, names, keep=4) if one.kept] == [
        "best", "good", "wide",
    ]  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    plan = SearchPlanFile(
        config_sha256="0" * 64,
        baseline="xielu",
        candidates=(PlannedCandidate(name="a", content_hash="1" * 64),),
        rounds=(1,),
        confirmations=("small", "large"),
        rule="rule",
    )
    write_record(tmp_path / "plan" / PLAN, SearchPlanFile, asdict(plan))
    for name, reasons in (("a", ()), ("b", ("flat",))):
        found = CandidateFile(name=name, reasons=reasons)
        write_record(tmp_path / "candidates" / name / "screen.json", CandidateFile, vars(found))
    return tmp_path


def _round(root: Path, **difference: float) -> RoundResult:
    lines = [_line(name, (d, d - 0.01, d + 0.01)) for name, d in difference.items()]
    ranked = ranking(_judged(*lines), list(difference), keep=1)
    return RoundResult(folder="rounds/1", seeds=2, tokens=1.0, ranking=ranked)


def _confirmed(name: str, difference: float, better: bool) -> ConfirmationResult:
    return ConfirmationResult(
        name=name, folder=f"confirm/{name}", matched="parameters", parameters=1000,
        difference=difference, low=difference - 0.004, high=difference + 0.004, p_value=0.004,
        better=better, excluded=None if better else max(0.0, 0.004 - difference),
    )  # fmt: skip


def test_a_winner_is_better_in_every_confirmation(root: Path) -> None:
    rounds = [_round(root, a=-0.02)]
    both = [_confirmed("small", -0.02, True), _confirmed("large", -0.01, True)]
    done = search_result(root, rounds, both, planned=2)
    assert (done.state, done.finalist, done.winner) == ("complete", "a", "a")
    assert done.sentences[0].startswith("a is better than xielu in all 2 confirmations")
    half = search_result(root, rounds, both[:1], planned=2)
    assert (half.state, half.finalist, half.winner) == ("confirming", "a", "")


def test_without_a_winner_the_verdict_excludes_an_improvement(root: Path) -> None:
    mixed = [_confirmed("small", -0.02, True), _confirmed("large", 0.001, False)]
    done = search_result(root, [_round(root, a=-0.02)], mixed, planned=2)
    assert (done.state, done.winner) == ("complete", "")
    assert done.sentences[0] == (
        "a, the finalist, is not shown to be better than xielu, but only in: small."
    )
    assert "an improvement of more than 0.0030 is excluded" in done.sentences[-1]
    assert (
        "2 candidates: 1 failed the screen, 0 were too slow, 1 were registered for training."
        in done.sentences
    )


def test_a_search_ends_when_no_candidate_is_left(root: Path) -> None:
    done = search_result(root, [_round(root, a=0.05)], [], planned=2)
    assert (done.state, done.finalist) == ("complete", "")
    assert done.sentences[0].startswith("No candidate is left: after round 1")
    begun = search_result(root, [], [], planned=2)
    assert (begun.state, begun.sentences[0]) == (
        "searching", "The search has finished 0 of 1 rounds.",
    )  # fmt: skip


def test_a_baseline_that_diverged_ends_the_search(tmp_path: Path) -> None:
    good = write_comparison(tmp_path / "good")
    assert len(round_result(good, "rounds/1", 1, ("swiglu",)).ranking) == len(LOSSES) - 1
    losses = {**LOSSES, "swiglu": (*LOSSES["swiglu"][1:], math.nan)}
    bad = write_comparison(tmp_path / "bad", losses)
    with pytest.raises(RunError, match="the baseline swiglu diverged in rounds/1, with seed"):
        round_result(bad, "rounds/1", 1, ("swiglu",))
