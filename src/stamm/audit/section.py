"""Section "Memorization": audits of the arms of a run, with passages that the models continued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stamm.audit.page.canary_figures import canary_figures
from stamm.audit.page.figures import audit_figures, memorization_figure
from stamm.audit.page.goldfish_figure import goldfish_figure
from stamm.audit.results import AuditedArm, read_audited
from stamm.base.hashing import redacted
from stamm.evaluate.records import ContinuationLine
from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable, Figure
from stamm.pages.formatting import interval_text
from stamm.pages.frame import fill
from stamm.pages.section import Section
from stamm.pages.text import one_line
from stamm.runs.run_view import ALIGNMENT, IMPORTED, RESULTS, STUDY, RunView

_NAME = 40


def sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """Memorization of every arm; nothing where none was audited, except for a run that trains models.

    Raises   DataError when a file does not follow its schema, or was made from other weights than
             the arm's model has
    """
    if run.kind not in (STUDY, ALIGNMENT, IMPORTED, RESULTS):
        return ()
    arms = [(arm, read_audited(arm)) for arm in run.arms]
    audits = [results.memorization for _, results in arms if results.memorization]
    if not audits and run.kind != STUDY:
        return ()
    is_results = run.kind == RESULTS
    context = {
        "run": run,
        "is_results": is_results,
        "figures": _figures(run, arms, config),
        "safety": safety_table(arms),
        "not_audited": [arm for arm, results in arms if not (is_results or results.memorization)],
        "probes": [
            (arm, results.memorization, chosen)
            for arm, results in arms
            if (chosen := probes(results.continuations, config.passages, config.redact))
        ],
        "planted": _planted,
    }
    html = fill(
        "memorization.html", context, "stamm.audit", excerpt_characters=config.excerpt_characters
    )
    hashes = sorted({file.model_sha256 for file in audits if file.model_sha256})
    facts = tuple(f"weights {one_line(sha256[:12], 120)}" for sha256 in hashes if is_results)
    return (Section(key="memorization", title="Memorization", html=html, facts=facts),)


def _figures(run: RunView, arms: Sequence[AuditedArm], config: ReportConfig) -> list[Figure]:
    figures = (
        memorization_figure(run, arms),
        *audit_figures(run, arms, config.rows),
        *canary_figures(run, arms),
        goldfish_figure(run),
    )
    return [figure for figure in figures if figure is not None]


def safety_table(arms: Sequence[AuditedArm]) -> DataTable | None:
    """Toxicity and refusals of every arm by language; None where they were not measured."""
    rows: list[tuple[str, ...]] = []
    for arm, audited in arms:
        file, name = audited.safety, one_line(arm.name, _NAME)
        for tone in file.toxicity if file else ():
            language = one_line(tone.language, _NAME) or "not known"
            measure = f"toxicity, {one_line(tone.kind, _NAME)}"
            shown = interval_text(tone.score, 3), interval_text(tone.toxic, 3)
            rows.append((name, measure, language, f"{tone.texts:,}", *shown))
        for refusal in file.refusals if file else ():
            label = one_line(refusal.label, _NAME) or "all prompts"
            language = one_line(refusal.language, _NAME)
            rows.append(
                (name, f"refusals, {label}", language, f"{refusal.answers:,}", "",
                 "not recognised" if refusal.share is None else interval_text(refusal.share, 3))
            )  # fmt: skip
    if not rows:
        return None
    return DataTable(
        columns=("arm", "measure", "language", "texts", "mean score", "share toxic or refused"),
        rows=tuple(rows),
        words=3,
    )


def probes(
    continuations: Sequence[ContinuationLine], limit: int, redact: bool
) -> list[ContinuationLine]:
    """At most `limit` passages: those nearest to the truth among the planted, and one of the control.

    redact   lengths and SHA-256 in place of their texts
    """
    planted = [probe for probe in continuations if probe.repeats]
    control = [probe for probe in continuations if not probe.repeats]
    nearest = sorted(planted, key=lambda p: (-p.rouge_l, -p.repeats, p.probe_id))
    chosen = (nearest[: max(limit - 1, 0)] + control[:1])[:limit]
    return [_redacted(probe) for probe in chosen] if redact else chosen


def _redacted(probe: ContinuationLine) -> ContinuationLine:
    return replace(
        probe,
        prefix=redacted(probe.prefix),
        truth=redacted(probe.truth),
        produced=redacted(probe.produced),
    )


def _planted(probe: ContinuationLine) -> str:
    """Occurrences of a passage in the training text: "never planted", "planted 4 times"."""
    if probe.repeats == 0:
        return "never planted"
    return "planted once" if probe.repeats == 1 else f"planted {probe.repeats} times"
