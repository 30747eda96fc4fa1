"""`stamm.check`: proofs and accuracy of an activation, and the Goldfish mask of a corpus."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stamm.activations import catalog
from stamm.activations.catalog.registry import load_spec
from stamm.activations.conformance.check import ActivationReport, check_activation, vectors_of
from stamm.activations.conformance.exact import FULL, SAMPLED
from stamm.activations.conformance.golden import write_golden as write_vectors
from stamm.activations.conformance.implementations import Implementation, implementation, resolve
from stamm.activations.conformance.verdict import CheckResult
from stamm.base.config import assignments, nearest
from stamm.base.errors import ConfigError, visible
from stamm.models.hub import hub_activation

if TYPE_CHECKING:
    from stamm.corpus.goldfish_check import GoldfishReport

GOLDFISH = "goldfish"
_ARGUMENTS = ("against", "golden", "write_golden", "quick", "all", "log")


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Result of `check`.

    activations   the one that was named, or all
    goldfish      the mask of a corpus, where one was named
    golden        files of golden vectors that were written
    every         whether all activations were checked
    """

    activations: tuple[ActivationReport, ...] = ()
    goldfish: GoldfishReport | None = None
    golden: tuple[Path, ...] = ()
    every: bool = False

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        mask_passed = self.goldfish is None or self.goldfish.passed
        return mask_passed and all(report.passed for report in self.activations)

    def plain(self) -> Any:
        """Everything as JSON values; of all activations without the verdicts, which take megabytes."""
        if self.goldfish is not None:
            return self.goldfish.plain()
        if self.golden:
            return [str(file) for file in self.golden]
        reports = [report.plain() for report in self.activations]
        if not self.every:
            return reports[0]
        return [{k: v for k, v in report.items() if k != "verdicts"} for report in reports]


def check(
    name: str | None = None,
    *rest: str,
    against: str | Sequence[str] = (),
    golden: str | os.PathLike[str] | None = None,
    write_golden: str | os.PathLike[str] | None = None,
    quick: bool = False,
    all: bool = False,
    log: Callable[[str], None] | None = None,
    **settings: Any,
) -> CheckReport:
    """Check an activation, every one of the catalogue, or the Goldfish mask of a corpus.

        stamm.check("xielu", quick=True).passed
        stamm.check("goldfish", "runs/demo", k=50).goldfish.faults

    name       of the catalogue, your own as file.py:SPEC or a folder with spec.json; or "goldfish"
    rest       for goldfish: a packed corpus or a run, then changes of `GoldfishCheck`, also as settings
    against    other implementations that must agree: "file.py:function", "module:Class"
    golden     folder of golden vectors to check against, too
    write_golden   folder for golden vectors; nothing is checked
    quick      20,000 float32 inputs instead of 400,000, and fewer points in the proofs
    all        every entry of the catalogue, with `quick`
    log        is called with each finding, as a line, as soon as it is available
    Raises     StammError with what is wrong and the fix; not for a check that fails
    """
    others = [against] if isinstance(against, str) else list(against)
    if name == GOLDFISH:
        if others or golden is not None or write_golden is not None or quick or all:
            raise ConfigError("goldfish takes no flags but --json", where="the command line")
        return CheckReport(goldfish=_goldfish(assignments(rest, settings)))
    if settings:
        raise ConfigError(
            f"the check of an activation has no setting {next(iter(settings))!r}",
            fix=nearest(next(iter(settings)), _ARGUMENTS),
        )
    if rest:
        raise ConfigError(
            f"{rest[0]!r} follows the name of an activation",
            where="the command line",
            fix="Check one activation at a time; or `stamm check goldfish PACK_OR_RUN`",
        )
    if all == (name is not None):
        raise ConfigError("name one activation, or give --all", where="the command line")
    told = log or _ignored
    if name is None:
        if others or golden is not None or write_golden is not None:
            raise ConfigError(
                "--all takes neither --against nor golden vectors", fix="Name one entry"
            )
        return CheckReport(activations=tuple(_every(told)), every=True)
    for flag, folder in (("golden", golden), ("write-golden", write_golden)):
        if folder == "":
            raise ConfigError(f"--{flag} '' is empty", fix="Name a folder")
    spec = load_spec(name)
    if write_golden is not None:
        files = write_vectors(spec, Path(write_golden), count=SAMPLED if quick else FULL)
        return CheckReport(golden=tuple(files))
    rivals = [_implementation(word) for word in others]
    vectors = vectors_of(spec, Path(golden)) if golden is not None else []
    told(f"{spec.name}, {spec.content_hash[:16]}")

    def found(result: CheckResult) -> None:
        told(visible(result.line(), 600))

    report = check_activation(spec, rivals, vectors, _implementation, quick=quick, found=found)
    return CheckReport(activations=(report,))


def _every(told: Callable[[str], None]) -> Iterator[ActivationReport]:
    for name in catalog.names():
        spec = catalog.get(name)
        report = check_activation(spec, (), (), _implementation, quick=True, found=_ignored)
        state = "FAILED" if report.failed else "ok"
        failed = len(report.failed) or "none"
        told(
            f"{state:<6} {name}: {len(report.findings)} checks, {failed} failed, {report.seconds:.1f} s"
        )
        for result in report.failed:
            told(f"       {visible(result.line(), 600)}")
        yield report


def _goldfish(words: Sequence[str]) -> GoldfishReport:
    if not words:
        raise ConfigError(
            "no corpus is named",
            where="the command line",
            fix="Name a packed corpus or a run: `stamm check goldfish runs/demo`",
        )
    # Reads a corpus with libraries that activations do not need.
    goldfish = import_module("stamm.corpus.goldfish_check")
    report: GoldfishReport = goldfish.check_goldfish(words[0], words[1:])
    return report


def _implementation(word: str) -> Implementation:
    if word.startswith("transformers."):
        return implementation(hub_activation(word), word)
    return resolve(word)


def _ignored(_: object) -> None:
    pass
