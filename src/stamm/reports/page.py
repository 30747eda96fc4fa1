"""Text of the page: headings, tables of facts, quotations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from stamm.base.hashing import redacted
from stamm.base.units import count_text, flops_text, seconds_text
from stamm.reports.audit_figures import safety_table
from stamm.reports.config import ReportConfig
from stamm.reports.corpus_tables import CorpusTables, corpus_tables
from stamm.reports.events import events_table
from stamm.reports.figure import DataTable
from stamm.reports.formatting import fixed, percent
from stamm.reports.observation_section import observation_table, observed_arms
from stamm.reports.run_data import ArmResults, RunResults
from stamm.reports.swap_section import swap_table
from stamm.reports.task_comparison import difference_table
from stamm.reports.task_results import TaskTables, task_tables
from stamm.reports.text import one_line
from stamm.runs.schemas.evaluation import ContinuationLine
from stamm.runs.schemas.export import ParityFile
from stamm.runs.schemas.release import ReleasedFile
from stamm.runs.schemas.run import ManifestFile

CONTENTS = (
    ("verdict", "Verdict"),
    ("swap", "Replaced activation"),
    ("alignment", "Aligned answers"),
    ("answers", "Side by side"),
    ("prepared", "Prepared data"),
    ("training", "Training"),
    ("shape", "Learned shape"),
    ("observe", "Layers"),
    ("languages", "Held-out text"),
    ("corpus", "Corpus and consent"),
    ("memorization", "Memorization"),
    ("export", "Export"),
    ("again", "Doing it again"),
)
_LONGEST_CELL = 120
_MOST_LANGUAGES = 2000
_OF_A_CORPUS = {"corpus", "again"}
_OF_ALIGNMENT = {"alignment", "answers", "prepared"}


@dataclass(frozen=True, kw_only=True)
class ReportPage:
    """Text and tables of a page.

    is_corpus   nothing was trained: the page is about the corpus alone
    shown       keys of the sections that the page has
    events      loss spikes, non-finite losses, skipped steps; None where they were not recorded
    tasks       results of evaluation tasks other than held_out and blimp
    task_differences   the same between arms; None without any
    """

    title: str
    facts: tuple[str, ...]
    contents: tuple[tuple[str, str], ...]
    is_corpus: bool
    shown: frozenset[str]
    not_evaluated: tuple[ArmResults, ...]
    not_audited: tuple[ArmResults, ...]
    events: DataTable | None
    tasks: TaskTables
    task_differences: DataTable | None
    corpus: CorpusTables | None
    safety: DataTable | None
    observed: DataTable | None
    swapped: DataTable | None
    probes: tuple[tuple[ArmResults, tuple[ContinuationLine, ...]], ...]
    environment: DataTable
    steps: DataTable
    hashes: DataTable

    def planted(self, probe: ContinuationLine) -> str:
        """Occurrences of a passage in the training text: "never planted", "planted 4 times"."""
        if probe.repeats == 0:
            return "never planted"
        return "planted once" if probe.repeats == 1 else f"planted {probe.repeats} times"

    def parity(self, parity: ParityFile) -> DataTable:
        """The parity report of an export."""
        return DataTable(
            columns=(
                "text", "sequences", "tokens", "largest difference, of any logit",
                "share, of the largest logit", "same most likely token",
            ),
            rows=tuple(
                (
                    _cell(one.text), f"{one.sequences:,}", f"{one.positions:,}",
                    _small(one.max_absolute), _small(one.max_relative),
                    percent(one.argmax_agreement, 2),
                )
                for one in parity.comparisons
            ),
        )  # fmt: skip

    def held_out(self, parity: ParityFile) -> DataTable:
        """Token ids and bits per byte of held-out text by language, most different ids first."""
        ids = {one.language: one for one in parity.tokens}
        bits = {one.language: one for one in parity.bits if one.language}
        names = sorted({**ids, **bits}, key=lambda name: -ids[name].differing if name in ids else 0)
        rows = tuple(
            (
                _cell(name),
                *((f"{a.tokens:,}", f"{a.differing:,}") if (a := ids.get(name)) else ("", "")),
                *(
                    (f"{b.original:.4f}", f"{b.exported:.4f}")
                    if (b := bits.get(name))
                    else ("", "")
                ),
            )
            for name in names[:_MOST_LANGUAGES]
        )
        left = len(names) - len(rows)
        return DataTable(
            columns=(
                "language",
                "token ids",
                "different ids",
                "bits per byte, original",
                "exported",
            ),
            rows=rows,
            note=f"{left:,} more languages are in parity.json." if left else "",
        )

    def released(self, release: ReleasedFile) -> DataTable:
        """The files of a release with size and SHA-256, at most 200."""
        rows = tuple(
            (_cell(name), f"{one.bytes:,}", _cell(one.sha256))
            for name, one in release.files.items()
        )
        left = f"{len(rows) - 200:,} more files are in SHA256SUMS." if len(rows) > 200 else ""
        return DataTable(columns=("file", "bytes", "SHA-256"), rows=rows[:200], note=left)


def page_of(study: RunResults, config: ReportConfig) -> ReportPage:
    """The page about `study`."""
    alone = study.corpus is not None and not study.arms and not study.is_alignment
    shown = _shown(study, alone)
    run_arms = () if study.is_results else study.arms
    return ReportPage(
        title=one_line(config.title, 200) or _title(study),
        facts=_facts(study),
        contents=tuple(one for one in CONTENTS if one[0] in shown),
        is_corpus=alone,
        shown=shown,
        not_evaluated=tuple(arm for arm in run_arms if arm.measured.held_out is None),
        not_audited=tuple(arm for arm in run_arms if arm.measured.memorization is None),
        events=events_table([(arm.name, arm.training) for arm in study.arms], config.rows),
        tasks=task_tables(
            [(arm.name, arm.measured.tasks) for arm in study.arms],
            [(arm.name, (one,)) for arm in study.arms if (one := arm.measured.held_out)],
        ),
        task_differences=difference_table(study.differences),
        corpus=corpus_tables(study, config),
        safety=safety_table(study),
        observed=observation_table(study),
        swapped=None if study.swap is None else swap_table(study.swap),
        probes=_probes(study, config.passages, config.redact),
        environment=_environment(study),
        steps=_steps(study),
        hashes=DataTable(columns=("file", "SHA-256"), rows=study.hashes, words=2),
    )


def _shown(study: RunResults, corpus_alone: bool) -> frozenset[str]:
    """Keys of the page's sections. A page about alignment has only those that something was made for."""
    if corpus_alone:
        return frozenset(_OF_A_CORPUS)
    every = frozenset(key for key, _ in CONTENTS)
    if study.is_results:
        (found,) = (arm.measured for arm in study.arms)
        evaluated = {"languages"} if found.tasks or found.blimp else set()
        return frozenset(evaluated | ({"memorization"} if found.memorization else set()))
    if study.swap is None:
        every -= {"swap"}
    elif not study.arms:
        return frozenset({"swap", "again"})
    if not observed_arms(study):
        every -= {"observe"}
    measured = [arm.measured for arm in study.arms]
    if study.is_imported:
        audited = {"memorization"} if any(one.memorization for one in measured) else set()
        return every - _OF_ALIGNMENT - {"training", "shape", "corpus", "memorization"} | audited
    if not study.is_alignment:
        return every - _OF_ALIGNMENT
    made = {
        "answers": any(arm.file.examples for arm in study.aligned),
        "prepared": bool(study.prepared),
        "shape": any(arm.training.metrics and arm.training.metrics.shapes for arm in study.arms),
        "languages": any(one.held_out or one.blimp or one.tasks or one.curves for one in measured),
        "corpus": study.corpus is not None,
        "memorization": any(one.memorization for one in measured),
        "export": any(one.parities or one.samples for one in measured),
    }
    return every - {key for key, there in made.items() if not there}


def _title(study: RunResults) -> str:
    if study.is_single or len(study.arms) < 2:
        return _cell(study.recipe)
    names = [_cell(arm.name) for arm in study.arms]
    return f"{_cell(study.recipe)}: {', '.join(names[:-1])} and {names[-1]}"


def _facts(study: RunResults) -> tuple[str, ...]:
    facts = []
    if study.is_results:
        found = study.arms[0].measured
        known = (*found.tasks, found.blimp, found.memorization)
        hashes = sorted({one.model_sha256 for one in known if one and one.model_sha256})
        facts += [f"weights {_cell(sha256[:12])}" for sha256 in hashes]
    summaries = [arm.training.summary for arm in study.arms if arm.training.summary]
    if summaries:
        facts.append(f"{count_text(max(s.parameters for s in summaries))} parameters")
        facts.append(f"{count_text(max(s.trained_tokens for s in summaries))} tokens an arm")
        facts.append(f"{fixed(max(s.epochs for s in summaries), 2)} epochs")
        facts.append(f"{flops_text(max(s.flops for s in summaries))} an arm")
    seeds = sorted({arm.training.seed for arm in study.arms if arm.training.seed is not None})
    if seeds:
        facts.append("seed " + ", ".join(map(str, seeds)))
    if study.corpus:
        facts.append(f"{study.corpus.summary.n_kept:,} documents")
        facts.append(f"{len(study.corpus.summary.kept_by_language)} languages")
    if study.manifest and study.manifest.cpu:
        facts.append(_cell(study.manifest.cpu))
    if study.manifest and study.manifest.started:
        facts.append(f"begun {_cell(study.manifest.started)}")
    return tuple(facts)


def _small(value: float) -> str:
    return "0" if value == 0 else f"{value:.2e}"


def _probes(
    study: RunResults, limit: int, redact: bool
) -> tuple[tuple[ArmResults, tuple[ContinuationLine, ...]], ...]:
    shown = []
    for arm in study.arms:
        seen = [probe for probe in arm.measured.continuations if probe.repeats]
        control = [probe for probe in arm.measured.continuations if not probe.repeats]
        nearest = sorted(seen, key=lambda p: (-p.rouge_l, -p.repeats, p.probe_id))
        chosen = nearest[: max(limit - 1, 0)] + control[:1]
        if redact:
            chosen = [_redacted(probe) for probe in chosen]
        if limit and chosen:
            shown.append((arm, tuple(chosen[:limit])))
    return tuple(shown)


def _redacted(probe: ContinuationLine) -> ContinuationLine:
    return replace(
        probe,
        prefix=redacted(probe.prefix),
        truth=redacted(probe.truth),
        produced=redacted(probe.produced),
    )


def _environment(study: RunResults) -> DataTable:
    manifest = study.manifest
    if manifest is None:
        return DataTable(columns=("what", "value"), rows=())
    timings = [arm.training.timing for arm in study.arms if arm.training.timing]
    facts = [
        ("command", " ".join(manifest.command)),
        ("overrides", " ".join(study.overrides) or "none"),
        ("stamm", manifest.version),
        ("commit", _commit(manifest)),
        ("Python", manifest.python),
        ("platform", manifest.platform),
        ("processor", manifest.cpu),
        ("seed", _alike(str(a.training.seed) for a in study.arms if a.training.seed is not None)),
        ("threads", _alike(str(one.threads) for one in timings)),
        ("compiled", _alike("yes" if one.compiled else "no" for one in timings)),
        ("peak memory", _alike(f"{fixed(one.peak_gib, 2)} GiB" for one in timings)),
        ("begun", manifest.started),
        (
            "libraries",
            ", ".join(f"{name} {version}" for name, version in manifest.libraries.items()),
        ),
    ]
    return DataTable(
        columns=("what", "value"),
        rows=tuple((name, one_line(value, 800)) for name, value in facts if value),
        words=2,
    )


def _alike(values: Iterable[str]) -> str:
    """Each value once, in order: arms mostly have the same."""
    return ", ".join(sorted(set(values)))


def _commit(manifest: ManifestFile) -> str:
    if manifest.commit is None:
        return "not recorded"
    changed = f", with uncommitted changes {manifest.dirty}" if manifest.dirty else ""
    return f"{manifest.commit}{changed}"


def _steps(study: RunResults) -> DataTable:
    steps = study.steps
    total = sum(seconds for _, seconds in steps)
    return DataTable(
        columns=("step", "seconds"),
        rows=tuple((_cell(n), fixed(s, 1)) for n, s in steps),
        note=f"Together {seconds_text(total)}." if steps else "",
    )


def _cell(text: str) -> str:
    return one_line(text, _LONGEST_CELL)
