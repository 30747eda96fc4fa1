"""`stamm.check`: proofs and accuracy of an activation, and the Goldfish mask of a corpus."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stamm.activations import catalog
from stamm.activations.board.board import QUICK, measure_board
from stamm.activations.board.executorch_library import executorch_library
from stamm.activations.board.jax_library import jax_library
from stamm.activations.board.library import (
    Library,
    TorchFunctions,
    torch_functions,
    transformers_functions,
)
from stamm.activations.board.mlx_library import mlx_library
from stamm.activations.board.onnx_library import onnx_operators
from stamm.activations.board.page import PATCHES, pages, patches_in
from stamm.activations.board.records import BoardRecord
from stamm.activations.catalog.registry import load_spec
from stamm.activations.conformance.check import ActivationReport, check_activation, vectors_of
from stamm.activations.conformance.exact import FULL, SAMPLED
from stamm.activations.conformance.golden import write_golden as write_vectors
from stamm.activations.conformance.implementations import Implementation, implementation, resolve
from stamm.activations.conformance.verdict import CheckResult
from stamm.activations.emitters.latex import LATEX
from stamm.activations.emitters.syntax import EmissionTarget
from stamm.activations.emitters.verb import TARGETS
from stamm.base.config import assignments, nearest, to_plain
from stamm.base.errors import ConfigError, visible
from stamm.base.files import write_text
from stamm.export.ggml_library import ggml_library
from stamm.models.hub import hub_activation, hub_activations, hub_version

if TYPE_CHECKING:
    from stamm.corpus.goldfish_check import GoldfishReport

GOLDFISH = "goldfish"
_QUICK_COUNT = 2_000  # float32 inputs of the short board, beside those of the judge
_ARGUMENTS = ("against", "golden", "write_golden", "quick", "all", "board", "out", "log")


def _transformers() -> TorchFunctions:
    return transformers_functions(hub_version(), hub_activations())


LIBRARIES: Mapping[str, Callable[[], Library]] = {
    "torch": torch_functions,
    "transformers": _transformers,
    "jax": jax_library,
    "mlx": mlx_library,
    "onnxruntime": onnx_operators,
    "executorch": executorch_library,
    "llama.cpp": ggml_library,
}
PROGRAMS: Mapping[str, EmissionTarget] = {
    name: target for name, target in TARGETS.items() if target is not LATEX
}


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Result of `check`.

    activations   the one that was named, or all
    goldfish      the mask of a corpus, where one was named
    golden        files of golden vectors that were written
    every         whether all activations were checked
    board         what the conformance board measured
    pages         files that it was written to
    """

    activations: tuple[ActivationReport, ...] = ()
    goldfish: GoldfishReport | None = None
    golden: tuple[Path, ...] = ()
    every: bool = False
    board: BoardRecord | None = None
    pages: tuple[Path, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every check passed; of the board, whether each target that runs has every entry."""
        if self.board is not None:
            ran = {runtime.name for runtime in self.board.targets if runtime.version}
            return not any(row.problem for row in self.board.target_rows if row.target in ran)
        mask_passed = self.goldfish is None or self.goldfish.passed
        return mask_passed and all(report.passed for report in self.activations)

    def plain(self) -> Any:
        """Everything as JSON values; of all activations without the verdicts, which take megabytes."""
        if self.board is not None:
            return to_plain(self.board)
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
    board: bool = False,
    out: str | os.PathLike[str] | None = None,
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
    board      the conformance board instead: every activation in the installed libraries, and every
               entry in every target of `emit` that is a program; with `quick` few entries
    out        folder for the pages of the board
    log        is called with each finding, as a line, as soon as it is available
    Raises     StammError with what is wrong and the fix; not for a check that fails
    """
    others = [against] if isinstance(against, str) else list(against)
    if board:
        if settings:
            raise ConfigError(
                f"the board has no setting {next(iter(settings))!r}",
                fix=nearest(next(iter(settings)), ("quick", "out", "log")),
            )
        named = name is not None or rest or others
        if named or golden is not None or write_golden is not None or all:
            raise ConfigError(
                "--board takes --quick and --out only", where="the command line", fix="Give no NAME"
            )
        return _board(None if out is None else _folder(out), quick, log or _ignored)
    if out is not None:
        raise ConfigError("--out belongs to --board", where="the command line", fix="Add --board")
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


def _folder(out: str | os.PathLike[str]) -> Path:
    """The folder, made and writable before minutes are spent on what goes into it."""
    folder = Path(out)
    if os.fspath(out) == "" or (folder.exists() and not folder.is_dir()):
        raise ConfigError(
            f"--out '{os.fspath(out)}' is not a folder", fix="Name a folder: --out docs"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out '{folder}' cannot be made: {error.strerror}", fix="Name a folder: --out docs"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"--out '{folder}' cannot be written", fix="Name a folder of your own")
    return folder


def _board(out: Path | None, quick: bool, told: Callable[[str], None]) -> CheckReport:
    record = measure_board(
        LIBRARIES,
        PROGRAMS,
        entries=QUICK if quick else catalog.names(),
        count=_QUICK_COUNT if quick else SAMPLED,
        compiled=not quick,
        log=told,
    )
    if out is None:
        return CheckReport(board=record)
    written = []
    for file, content in pages(record, patches_in(out / PATCHES)).items():
        write_text(out / file, content)
        written.append(out / file)
    return CheckReport(board=record, pages=tuple(written))


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
