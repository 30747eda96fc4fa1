"""Section "Doing it again": command, environment, steps and hashes of a run."""

from __future__ import annotations

from collections.abc import Iterable

from stamm.base.schema import read_record_if_present
from stamm.base.units import seconds_text
from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable
from stamm.pages.formatting import fixed
from stamm.pages.frame import fill
from stamm.pages.section import Section
from stamm.pages.text import one_line
from stamm.pretrain.records import TimingFile
from stamm.runs.records import ManifestFile
from stamm.runs.run_view import RunView

AGAIN = "again"
_LONGEST_CELL = 120


def again_section(run: RunView, config: ReportConfig) -> Section:
    """The section with all that is needed to repeat the run."""
    context = {
        "manifest": run.manifest,
        "environment": _environment(run),
        "steps": _steps(run),
        "hashes": DataTable(columns=("file", "SHA-256"), rows=run.hashes, words=2),
    }
    html = fill("again.html", context, "stamm.pages", excerpt_characters=config.excerpt_characters)
    return Section(key=AGAIN, title="Doing it again", html=html)


def run_facts(run: RunView) -> tuple[str, ...]:
    """Processor and start of a run, for the head of its page."""
    facts = []
    if run.manifest and run.manifest.cpu:
        facts.append(_cell(run.manifest.cpu))
    if run.manifest and run.manifest.started:
        facts.append(f"begun {_cell(run.manifest.started)}")
    return tuple(facts)


def _environment(run: RunView) -> DataTable:
    manifest = run.manifest
    if manifest is None:
        return DataTable(columns=("what", "value"), rows=())
    records = [
        read_record_if_present(TimingFile, a.folder / "log" / "timing.json") for a in run.arms
    ]
    timings = [record for record in records if record is not None]
    facts = [
        ("command", " ".join(manifest.command)),
        ("overrides", " ".join(run.overrides) or "none"),
        ("stamm", manifest.version),
        ("commit", _commit(manifest)),
        ("Python", manifest.python),
        ("platform", manifest.platform),
        ("processor", manifest.cpu),
        ("seed", _alike(str(arm.seed) for arm in run.arms if arm.seed is not None)),
        ("threads", _alike(str(timing.threads) for timing in timings)),
        ("compiled", _alike("yes" if timing.compiled else "no" for timing in timings)),
        ("peak memory", _alike(f"{fixed(timing.peak_gib, 2)} GiB" for timing in timings)),
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


def _steps(run: RunView) -> DataTable:
    total = sum(seconds for _, seconds in run.steps)
    return DataTable(
        columns=("step", "seconds"),
        rows=tuple((_cell(n), fixed(s, 1)) for n, s in run.steps),
        note=f"Together {seconds_text(total)}." if run.steps else "",
    )


def _cell(text: str) -> str:
    return one_line(text, _LONGEST_CELL)
