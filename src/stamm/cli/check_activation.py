"""`stamm check NAME`: proofs, probes and conformance tests of an activation, as tables."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stamm.activations import catalog
from stamm.activations.catalog.load import load_spec
from stamm.activations.conformance.certified import certificate_findings
from stamm.activations.conformance.exact import CONDITION_TEXT, FUNCTION, SLOPE
from stamm.activations.conformance.golden import (
    golden_files,
    judge_golden,
    read_golden,
    value_sets,
    write_golden,
)
from stamm.activations.conformance.implementations import (
    Implementation,
    StammImplementation,
    implementation,
    resolve,
)
from stamm.activations.conformance.inputs import FULL, SAMPLED
from stamm.activations.conformance.judge import judge
from stamm.activations.conformance.probes import probe
from stamm.activations.conformance.proofs import prove
from stamm.activations.conformance.reference import POINTS, truth_finding
from stamm.activations.conformance.verdict import (
    CheckResult,
    ConformanceVerdict,
    VerdictTable,
    summary,
    tables,
)
from stamm.activations.spec import Spec
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError, StammError, visible
from stamm.cli.output import print_json, print_table
from stamm.models.hub import hub_activation

_QUICK_POINTS = 20
_WRITE = "`stamm check NAME --write-golden FOLDER` writes them"
_MOST_PROBLEMS = 4  # in one line; --json has all


def check(options: argparse.Namespace) -> int:
    """Check one activation, or all of them; returns 0 when everything passes, else 1."""
    if options.all == (options.name is not None):
        raise ConfigError("name one activation, or give --all", where="the command line")
    if options.all:
        if options.against or options.golden is not None or options.write_golden is not None:
            raise ConfigError(
                "--all takes neither --against nor golden vectors", fix="Name one entry"
            )
        return _all(options)
    for flag in ("golden", "write_golden"):
        if getattr(options, flag) == "":
            raise ConfigError(f"--{flag.replace('_', '-')} '' is empty", fix="Name a folder")
    spec = load_spec(options.name)
    if options.write_golden is not None:
        return _write_golden(spec, Path(options.write_golden), options)
    rivals = [_implementation(word) for word in options.against]
    vectors = _vectors(spec, Path(options.golden)) if options.golden is not None else []
    check = _Check(spec, rivals, vectors, options)
    if options.json:
        findings = list(check.findings())
        print_json(check.plain(findings))
    else:
        print(f"{spec.name}, {spec.content_hash[:16]}")
        findings = []
        for found in check.findings():
            findings.append(found)
            print(visible(found.line(), 600), flush=True)
        check.print_tables()
        failed = sum(not found.passed for found in findings)
        print(f"\n{_count(failed)} of {len(findings)} checks failed, {check.seconds:.0f} s")
    return 0 if all(found.passed for found in findings) else 1


def _write_golden(spec: Spec, folder: Path, options: argparse.Namespace) -> int:
    files = write_golden(spec, folder, count=SAMPLED if options.quick else FULL)
    if options.json:
        print_json([str(file) for file in files])
    else:
        print("\n".join(str(file) for file in files))
    return 0


def _vectors(spec: Spec, folder: Path) -> list[Path]:
    """Golden vector files of this spec, each read once, so that a damaged one fails early."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder", where="--golden", fix=_WRITE)
    own = spec.content_hash
    paths = [path for path in golden_files(folder) if path.name.startswith(own[:16])]
    if not paths:
        raise DataError(f"{folder} holds no vectors of {spec.name} ({own[:16]})", fix=_WRITE)
    for path in paths:
        if read_golden(path).spec.content_hash != own:
            raise DataError(f"{path} holds another spec than its name", fix=_WRITE)
    return paths


class _Check:
    """All checks of one spec, in order; verdicts are kept for the tables."""

    def __init__(
        self,
        spec: Spec,
        rivals: Sequence[Implementation],
        vectors: Sequence[Path],
        options: argparse.Namespace,
    ) -> None:
        self.spec = spec
        self.rivals = rivals
        self.vectors = vectors
        self.quick = options.quick or options.all
        self.count = SAMPLED if self.quick else FULL
        self.verdicts: dict[str, list[ConformanceVerdict]] = {}
        self.notes: list[str] = []
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the check began."""
        return time.perf_counter() - self._began

    def findings(self) -> Iterator[CheckResult]:
        """Proofs, then probes, then conformance."""
        spec = self.spec
        yield from prove(spec, points=_QUICK_POINTS) if self.quick else prove(spec)
        yield from certificate_findings(spec)
        points = 10 * _QUICK_POINTS if self.quick else POINTS
        yield truth_finding(spec, spec.initial_values(), points=points)
        yield from probe(spec)
        for rival in self.rivals:
            yield from probe(spec, rival)
        for name, values in value_sets(spec).items():
            yield from self._conformance(name, values)
        yield from self._golden()

    def _conformance(self, name: str, values: dict[str, float]) -> Iterator[CheckResult]:
        found = self.verdicts.setdefault(name, [])
        for judged in (StammImplementation(), *self.rivals):
            verdict, numbers = self._verdict(judged, values)
            if verdict is not None:
                found.append(verdict)
            passed = verdict is not None and verdict.passed
            yield CheckResult(
                name=f"{judged.name} at {name} values", passed=passed, numbers=numbers
            )
        for word in self.spec.peers:
            if word in [rival.name for rival in self.rivals]:
                continue
            try:
                found.append(judge(self.spec, _implementation(word), values, count=self.count))
            except StammError as error:
                self.notes.append(f"{word} at {name} values is not compared: {error.line()}")

    def _verdict(
        self, judged: Implementation, values: dict[str, float]
    ) -> tuple[ConformanceVerdict | None, str]:
        try:
            verdict = judge(self.spec, judged, values, count=self.count)
        except DataError as error:
            return None, error.line()
        return verdict, _verdict_text(verdict)

    def _golden(self) -> Iterator[CheckResult]:
        for path in self.vectors:
            for judged in (StammImplementation(), *self.rivals):
                try:
                    verdict = judge_golden(path, judged)
                    passed, numbers = verdict.passed, _verdict_text(verdict)
                except DataError as error:
                    passed, numbers = False, error.line()
                yield CheckResult(
                    name=f"{judged.name}, {path.name}", passed=passed, numbers=numbers
                )

    def print_tables(self) -> None:
        """Print errors of f and f' by input at the first values, and the largest at all values."""
        judged = [verdict for found in self.verdicts.values() for verdict in found]
        where = judged[0].judged_where if judged else CONDITION_TEXT
        print(f"\nErrors in units of the last place, {where}.")
        if self.quick:
            print(f"float32 is sampled at {SAMPLED:,} inputs instead of {FULL:,}.")
        for name, verdicts in self.verdicts.items():
            if not verdicts:
                continue
            if name == next(iter(self.verdicts)):
                for table in tables(verdicts, [FUNCTION, SLOPE]):
                    _print(table)
            table = summary(verdicts)
            _print(
                VerdictTable(
                    title=f"{name} values, {table.title}", header=table.header, rows=table.rows
                )
            )
        for note in self.notes:
            print(f"\n{visible(note, 600)}")

    def plain(self, findings: Sequence[CheckResult]) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "spec": self.spec.name,
            "content_hash": self.spec.content_hash,
            "passed": all(found.passed for found in findings),
            "seconds": round(self.seconds, 1),
            "float32_inputs": self.count,
            "findings": [to_plain(found) for found in findings],
            "verdicts": {
                name: [to_plain(verdict) for verdict in verdicts]
                for name, verdicts in self.verdicts.items()
            },
            "notes": self.notes,
        }


def _all(options: argparse.Namespace) -> int:
    reports = []
    for name in catalog.names():
        check = _Check(catalog.get(name), (), (), options)
        findings = list(check.findings())
        report = check.plain(findings)
        del report["verdicts"]  # megabytes; `stamm check NAME --json` prints them
        reports.append(report)
        failed = [found for found in findings if not found.passed]
        if not options.json:
            state = "FAILED" if failed else "ok"
            result = f"{len(findings)} checks, {_count(len(failed))} failed, {check.seconds:.1f} s"
            print(f"{state:<6} {name}: {result}", flush=True)
            for found in failed:
                print(f"       {visible(found.line(), 600)}", flush=True)
    if options.json:
        print_json(reports)
    return 0 if all(report["passed"] for report in reports) else 1


def _implementation(word: str) -> Implementation:
    if word.startswith("transformers."):
        return implementation(hub_activation(word), word)
    return resolve(word)


def _verdict_text(verdict: ConformanceVerdict) -> str:
    """The largest error in each dtype, or the first problems."""
    if verdict.problems:
        more = len(verdict.problems) - _MOST_PROBLEMS
        ending = f"; and {more} more" if more > 0 else ""
        return "; ".join(verdict.problems[:_MOST_PROBLEMS]) + ending
    parts = []
    for of in verdict.dtypes:
        worst = {True: 0.0, False: 0.0}
        for m in of.quantities:
            own = not m.quantity.startswith("slope_in_")
            worst[own] = max(worst[own], m.worst.largest if m.worst is not None else 0.0)
        text = f"{of.dtype} {worst[True]:.3f} of {of.budget_ulp:g} ulp"
        if worst[False]:
            text += f", slopes in parameters {worst[False]:.3f} of {of.parameter_budget_ulp:g}"
        parts.append(f"{text} ({of.inputs:,} inputs)")
    facts = sum(len(of.facts) for of in verdict.dtypes)
    exact = f", {facts} exact values" if facts else ""
    skipped = f"; not judged: {', '.join(verdict.not_judged)}" if verdict.not_judged else ""
    return ", ".join(parts) + exact + skipped


def _print(table: VerdictTable) -> None:
    print(f"\n{table.title}")
    print_table(table.header, table.rows)


def _count(number: int) -> str:
    return str(number) if number else "none"
