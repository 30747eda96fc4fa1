"""The result of a search, from its folder: rankings of the rounds, confirmations, a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from stamm.base.errors import RunError
from stamm.base.files import sha256_file
from stamm.base.schema import read_record
from stamm.reports.comparison_verdict import ArmLine, Judgement, judged
from stamm.reports.formatting import signed
from stamm.reports.text import one_line
from stamm.runs.schemas.search import (
    COSTS,
    PLAN,
    SCREENED,
    CandidateFile,
    ConfirmationResult,
    CostsFile,
    RankedCandidate,
    RoundResult,
    SearchFile,
    SearchPlanFile,
)

ROUNDS, CONFIRM, RESULT = "rounds", "confirm", "search.json"


def ranking(judgement: Judgement, names: Sequence[str], keep: int) -> tuple[RankedCandidate, ...]:
    """The candidates of a round, best first; at most `keep` of those not shown to be worse are kept.

    A candidate that diverged, or against which the baseline did, has no difference and is last.

    Checked  tests/unit/reports/test_search_result.py
    """
    lines = {line.name: line for line in judgement.lines}
    found = [(_difference(lines[name]), name) for name in names]
    ordered = sorted(found, key=lambda one: math.inf if one[0] is None else one[0][0])
    ranked, left = [], keep
    for difference, name in ordered:
        mean, low, high = difference or (None, None, None)
        worse = mean is None or (low is not None and low > 0)
        ranked.append(
            RankedCandidate(
                name=name, difference=mean, low=low, high=high, kept=not worse and left > 0
            )
        )
        left -= ranked[-1].kept
    return tuple(ranked)


def round_result(folder: Path, place: str, keep: int, references: Sequence[str]) -> RoundResult:
    """Round in `folder`, a finished comparison; its arms but the references are the candidates.

    Raises   RunError when the baseline diverged: the candidates have no difference to it then
    """
    compared, judgement = judged(folder)
    base = next(line for line in judgement.lines if line.name == compared.baseline)
    if base.diverged:
        raise RunError(
            f"the baseline {one_line(base.name, 40)} diverged in {place}, with seed "
            f"{', '.join(map(str, base.diverged))}",
            fix="Lower the rates of the round (rounds.N.rates, or compare.tuning.rates)",
        )
    names = [arm.name for arm in compared.arms if arm.name not in references]
    tokens = [line.tokens for line in judgement.lines if line.tokens is not None]
    return RoundResult(
        folder=place,
        seeds=compared.finished(),
        tokens=tokens[0] if tokens else None,
        ranking=ranking(judgement, names, keep),
    )


def confirmation_result(folder: Path, name: str, finalist: str) -> ConfirmationResult:
    """The finalist against the baseline in `folder`, a finished comparison."""
    compared, judgement = judged(folder)
    line = next(one for one in judgement.lines if one.name == finalist)
    difference = _difference(line)
    mean, low, high = difference or (None, None, None)
    shown = line.difference is not None and line.difference.shown and not judgement.exploratory
    better = bool(shown and mean is not None and mean < 0)
    return ConfirmationResult(
        name=name,
        folder=f"{CONFIRM}/{name}",
        matched=compared.matched,
        parameters=line.parameters,
        difference=mean,
        low=low,
        high=high,
        p_value=line.difference.adjusted if line.difference is not None else None,
        better=better,
        excluded=None if better or low is None else max(0.0, -low),
    )


def search_result(
    root: Path,
    rounds: Sequence[RoundResult],
    confirmations: Sequence[ConfirmationResult],
    planned: int,
) -> SearchFile:
    """The result so far.

    planned   number of confirmations
    """
    plan = read_record(SearchPlanFile, root / "plan" / PLAN)
    finalist = ""
    if len(rounds) == len(plan.rounds):
        finalist = next((one.name for one in rounds[-1].ranking if one.kept), "")
    ended = not plan.candidates or bool(rounds and not any(one.kept for one in rounds[-1].ranking))
    complete = ended or (bool(finalist) and len(confirmations) == planned)
    won = complete and bool(finalist) and all(one.better for one in confirmations)
    state = "complete" if complete else "confirming" if finalist else "searching"
    return SearchFile(
        state=state,
        plan_sha256=sha256_file(root / "plan" / PLAN),
        baseline=plan.baseline,
        finalist=finalist,
        winner=finalist if won else "",
        rounds=tuple(rounds),
        confirmations=tuple(confirmations),
        sentences=tuple(_sentences(root, plan, rounds, confirmations, finalist, won)),
    )


def screened(root: Path) -> tuple[CandidateFile, ...]:
    """Results of the screen for each candidate, in the order of their names."""
    files = sorted((root / "candidates").glob(f"*/{SCREENED}"))
    return tuple(read_record(CandidateFile, file) for file in files)


def costs(root: Path) -> CostsFile:
    """Times of the kernels."""
    return read_record(CostsFile, root / "costs" / COSTS)


def _difference(line: ArmLine) -> tuple[float, float | None, float | None] | None:
    """Mean and interval of the difference to the baseline; None where there is no mean."""
    if line.diverged or line.difference is None:
        return None
    found = line.difference.interval
    return (found.mean, found.low, found.high) if math.isfinite(found.mean) else None


def _sentences(
    root: Path,
    plan: SearchPlanFile,
    rounds: Sequence[RoundResult],
    confirmations: Sequence[ConfirmationResult],
    finalist: str,
    won: bool,
) -> list[str]:
    base, name = one_line(plan.baseline, 40), one_line(finalist, 40)
    every = screened(root)
    failed = sum(bool(one.reasons) for one in every)
    slow = len(every) - failed - len(plan.candidates)
    said = [
        f"{len(every)} candidates: {failed} failed the screen, {slow} were too slow, "
        f"{len(plan.candidates)} were registered for training."
    ]
    if rounds and not any(one.kept for one in rounds[-1].ranking):
        said.insert(
            0,
            f"No candidate is left: after round {len(rounds)} all are shown to be worse than {base}, or diverged.",
        )
    elif not plan.candidates:
        said.insert(0, "No candidate passed the screen.")
    elif won:
        said.insert(
            0,
            f"{name} is better than {base} in all {len(confirmations)} confirmations, on seeds and text that "
            "the search did not use, at their initialisation and learning rates.",
        )
    elif confirmations:
        shown = [one.name for one in confirmations if one.better]
        where = f", but only in: {', '.join(shown)}" if shown else " in any confirmation"
        said.insert(0, f"{name}, the finalist, is not shown to be better than {base}{where}.")
    elif finalist:
        said.insert(0, f"{name} is the finalist; it is not confirmed yet.")
    else:
        said.insert(0, f"The search has finished {len(rounds)} of {len(plan.rounds)} rounds.")
    return [*said, *(_confirmation(one, name, base) for one in confirmations)]


def _confirmation(one: ConfirmationResult, name: str, base: str) -> str:
    size = "" if one.parameters is None else f", {one.parameters:,} parameters"
    head = f"{one.name} (equal {one.matched}{size}): "
    if one.difference is None:
        return f"{head}no mean difference, since a run diverged."
    span = (
        ""
        if one.low is None or one.high is None
        else f" (interval {signed(one.low, 4)} to {signed(one.high, 4)})"
    )
    said = f"{head}{name} has {signed(one.difference, 4)} bits per byte against {base}{span}"
    if one.excluded is None:
        return f"{said}."
    return f"{said}; an improvement of more than {one.excluded:.4f} is excluded."
