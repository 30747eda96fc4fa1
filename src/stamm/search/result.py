"""The result of a search, from its folder: rankings of the rounds, confirmations, a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from stamm.base.errors import RunError
from stamm.base.files import sha256_file
from stamm.base.schema import read_record
from stamm.compare.verdict import ArmLine, Judgement, judged
from stamm.pages.formatting import signed
from stamm.pages.text import one_line
from stamm.search.records import (
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

    Checked  tests/unit/search/test_search_result.py
    """
    lines = {line.name: line for line in judgement.lines}
    differences = [(_difference(lines[name]), name) for name in names]
    ordered = sorted(differences, key=lambda pair: math.inf if pair[0] is None else pair[0][0])
    ranked, to_keep = [], keep
    for difference, name in ordered:
        mean, low, high = difference or (None, None, None)
        worse = mean is None or (low is not None and low > 0)
        ranked.append(
            RankedCandidate(
                name=name, difference=mean, low=low, high=high, kept=not worse and to_keep > 0
            )
        )
        to_keep -= ranked[-1].kept
    return tuple(ranked)


def round_result(folder: Path, subfolder: str, keep: int, references: Sequence[str]) -> RoundResult:
    """Round in `folder`, a finished comparison; its arms but the references are the candidates.

    Raises   RunError when the baseline diverged: the candidates have no difference to it then
    """
    compared, judgement = judged(folder)
    base = next(line for line in judgement.lines if line.name == compared.baseline)
    if base.diverged:
        raise RunError(
            f"the baseline {one_line(base.name, 40)} diverged in {subfolder}, with seed "
            f"{', '.join(map(str, base.diverged))}",
            fix="Lower the rates of the round (rounds.N.rates, or compare.tuning.rates)",
        )
    names = [arm.name for arm in compared.arms if arm.name not in references]
    tokens = [line.tokens for line in judgement.lines if line.tokens is not None]
    return RoundResult(
        folder=subfolder,
        seeds=compared.finished(),
        tokens=tokens[0] if tokens else None,
        ranking=ranking(judgement, names, keep),
    )


def confirmation_result(folder: Path, name: str, finalist: str) -> ConfirmationResult:
    """The finalist against the baseline in `folder`, a finished comparison."""
    compared, judgement = judged(folder)
    line = next(arm_line for arm_line in judgement.lines if arm_line.name == finalist)
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
        finalist = next((candidate.name for candidate in rounds[-1].ranking if candidate.kept), "")
    ended = not plan.candidates or bool(
        rounds and not any(candidate.kept for candidate in rounds[-1].ranking)
    )
    complete = ended or (bool(finalist) and len(confirmations) == planned)
    won = complete and bool(finalist) and all(confirmation.better for confirmation in confirmations)
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
    interval = line.difference.interval
    return (interval.mean, interval.low, interval.high) if math.isfinite(interval.mean) else None


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
    failed = sum(bool(candidate.reasons) for candidate in every)
    slow = len(every) - failed - len(plan.candidates)
    said = [
        f"{len(every)} candidates: {failed} failed the screen, {slow} were too slow, "
        f"{len(plan.candidates)} were registered for training."
    ]
    if rounds and not any(candidate.kept for candidate in rounds[-1].ranking):
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
        shown = [confirmation.name for confirmation in confirmations if confirmation.better]
        where = f", but only in: {', '.join(shown)}" if shown else " in any confirmation"
        said.insert(0, f"{name}, the finalist, is not shown to be better than {base}{where}.")
    elif finalist:
        said.insert(0, f"{name} is the finalist; it is not confirmed yet.")
    else:
        said.insert(0, f"The search has finished {len(rounds)} of {len(plan.rounds)} rounds.")
    return [*said, *(_confirmation(confirmation, name, base) for confirmation in confirmations)]


def _confirmation(result: ConfirmationResult, name: str, base: str) -> str:
    size = "" if result.parameters is None else f", {result.parameters:,} parameters"
    head = f"{result.name} (equal {result.matched}{size}): "
    if result.difference is None:
        return f"{head}no mean difference, since a run diverged."
    span = (
        ""
        if result.low is None or result.high is None
        else f" (interval {signed(result.low, 4)} to {signed(result.high, 4)})"
    )
    said = f"{head}{name} has {signed(result.difference, 4)} bits per byte against {base}{span}"
    if result.excluded is None:
        return f"{said}."
    return f"{said}; an improvement of more than {result.excluded:.4f} is excluded."
