"""All checks of one activation in order: proofs, probes and conformance tests, of it and of other implementations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.activations.conformance.exact import FULL, SAMPLED
from stamm.activations.conformance.golden import (
    golden_files,
    judge_golden,
    read_golden,
    value_sets,
)
from stamm.activations.conformance.implementations import Implementation, StammImplementation
from stamm.activations.conformance.judge import judge
from stamm.activations.conformance.probes import probe
from stamm.activations.conformance.proofs import certificate_findings, prove
from stamm.activations.conformance.reference import POINTS, truth_finding
from stamm.activations.conformance.verdict import CheckResult, ConformanceVerdict
from stamm.activations.spec import Spec
from stamm.base.config import to_plain
from stamm.base.errors import DataError, StammError

WRITE = "`stamm check NAME --write-golden FOLDER` writes them"
_QUICK_POINTS = 20
_MOST_PROBLEMS = 4  # in one line; --json has all


@dataclass(frozen=True, kw_only=True)
class ActivationReport:
    """The checks of one activation.

    quick       whether float32 was sampled at fewer inputs: `float32_inputs`
    verdicts    errors by input, of each implementation, by the name of the parameter values
    notes       implementations that were not compared, and why
    """

    spec: Spec
    quick: bool
    float32_inputs: int
    findings: tuple[CheckResult, ...]
    verdicts: dict[str, list[ConformanceVerdict]]
    notes: tuple[str, ...]
    seconds: float

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(finding for finding in self.findings if not finding.passed)

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return not self.failed

    def plain(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "spec": self.spec.name,
            "content_hash": self.spec.content_hash,
            "passed": self.passed,
            "seconds": round(self.seconds, 1),
            "float32_inputs": self.float32_inputs,
            "findings": [to_plain(finding) for finding in self.findings],
            "verdicts": {
                name: [to_plain(verdict) for verdict in verdicts]
                for name, verdicts in self.verdicts.items()
            },
            "notes": list(self.notes),
        }


def check_activation(
    spec: Spec,
    rivals: Sequence[Implementation],
    vectors: Sequence[Path],
    implementation: Callable[[str], Implementation],
    *,
    quick: bool,
    found: Callable[[CheckResult], None],
) -> ActivationReport:
    """Check an activation.

    rivals           other implementations that must agree with it
    vectors          files of golden vectors
    implementation   the implementation with a name; for the peers that the spec names
    quick            fewer inputs, and fewer points in the proofs
    found            is called with each result as soon as it is available
    """
    check = _Check(spec, rivals, vectors, implementation, quick)
    findings = []
    for finding in check.findings():
        findings.append(finding)
        found(finding)
    return ActivationReport(
        spec=spec,
        quick=quick,
        float32_inputs=check.count,
        findings=tuple(findings),
        verdicts=check.verdicts,
        notes=tuple(check.notes),
        seconds=check.seconds,
    )


def vectors_of(spec: Spec, folder: Path) -> list[Path]:
    """Golden vector files of this spec, each read once, so that a damaged one fails early.

    Raises   DataError when one cannot be used
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder", where="--golden", fix=WRITE)
    own = spec.content_hash
    paths = [path for path in golden_files(folder) if path.name.startswith(own[:16])]
    if not paths:
        raise DataError(f"{folder} holds no vectors of {spec.name} ({own[:16]})", fix=WRITE)
    for path in paths:
        if read_golden(path).spec.content_hash != own:
            raise DataError(f"{path} holds another spec than its name", fix=WRITE)
    return paths


class _Check:
    """All checks of one spec, in order; verdicts are kept for the tables."""

    def __init__(
        self,
        spec: Spec,
        rivals: Sequence[Implementation],
        vectors: Sequence[Path],
        implementation: Callable[[str], Implementation],
        quick: bool,
    ) -> None:
        self.spec = spec
        self.rivals = rivals
        self.vectors = vectors
        self.quick = quick
        self._implementation = implementation
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
        verdicts = self.verdicts.setdefault(name, [])
        for judged in (StammImplementation(), *self.rivals):
            verdict, numbers = self._verdict(judged, values)
            if verdict is not None:
                verdicts.append(verdict)
            passed = verdict is not None and verdict.passed
            yield CheckResult(
                name=f"{judged.name} at {name} values", passed=passed, numbers=numbers
            )
        for word in self.spec.peers:
            if word in [rival.name for rival in self.rivals]:
                continue
            try:
                verdicts.append(
                    judge(self.spec, self._implementation(word), values, count=self.count)
                )
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


def _verdict_text(verdict: ConformanceVerdict) -> str:
    """The largest error in each dtype, or the first problems."""
    if verdict.problems:
        more = len(verdict.problems) - _MOST_PROBLEMS
        ending = f"; and {more} more" if more > 0 else ""
        return "; ".join(verdict.problems[:_MOST_PROBLEMS]) + ending
    parts = []
    for dtype in verdict.dtypes:
        worst = {True: 0.0, False: 0.0}
        for m in dtype.quantities:
            own = not m.quantity.startswith("slope_in_")
            worst[own] = max(worst[own], m.worst.largest if m.worst is not None else 0.0)
        text = f"{dtype.dtype} {worst[True]:.3f} of {dtype.budget_ulp:g} ulp"
        if worst[False]:
            text += f", slopes in parameters {worst[False]:.3f} of {dtype.parameter_budget_ulp:g}"
        parts.append(f"{text} ({dtype.inputs:,} inputs)")
    facts = sum(len(dtype.facts) for dtype in verdict.dtypes)
    exact = f", {facts} exact values" if facts else ""
    skipped = f"; not judged: {', '.join(verdict.not_judged)}" if verdict.not_judged else ""
    return ", ".join(parts) + exact + skipped
