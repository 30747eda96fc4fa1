"""A run folder as its page shows it: request, arms, steps. Results are read by the subjects that wrote them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from stamm.base.errors import DataError, RunError
from stamm.base.receipts import check_file, check_present, file_sha256, is_present
from stamm.base.schema import decode, read_record, read_record_if_present
from stamm.pages.text import one_line
from stamm.runs.manifest import MANIFEST_FIX
from stamm.runs.records import ConfigFile, ManifestFile, ReceiptFile

STUDY, ALIGNMENT, IMPORTED, RESULTS = "study", "alignment", "imported", "results"
CORPUS, REPLACEMENT, JUDGE = "corpus", "replacement", "judge"
FINETUNE, IMPORT = "finetune", "import"
_PRETRAIN, _REPORT = "pretrain", "report"
_ALIGNED, _ANSWERS, _ROWS = "alignment.json", "answers/alignment.json", "examples.parquet"
_WITHOUT_ARMS = {
    "judge/judge.json": JUDGE,
    "charter/summary.json": JUDGE,
    "corpus/summary.json": CORPUS,
    "replacement/replacement.json": REPLACEMENT,
    "carve/carve.json": REPLACEMENT,
    "sparsify/sparsify.json": REPLACEMENT,
    "stress/stress.json": REPLACEMENT,
}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_LONGEST_NAME = 120
_LONGEST_PATH = 4096


@dataclass(frozen=True, kw_only=True)
class _NamedArm:
    name: str


@dataclass(frozen=True, kw_only=True)
class _StudyConfig:
    arms: tuple[_NamedArm, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Seeded:
    OPEN: ClassVar[bool] = True

    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class ArmView:
    """One trained candidate.

    number   its place in the run, which gives its colour
    place    its folder relative to the run folder, "" for a run of one arm
    folder   the same as a path
    evaluate, audit   folders of its results
    kind     of the job that made it ("pretrain", "finetune", "import"); "" where it is not recorded
    """

    name: str
    number: int
    place: str
    folder: Path
    evaluate: Path
    audit: Path
    kind: str
    manifest: ManifestFile | None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run folder, for the sections of its page.

    root     the run folder
    name     its path as commands on the page write it, quoted: "runs/demo", or
             "runs/demo/arms/xielu" for an arm
    steps    name and seconds of each finished step, in the order in which they ended; writing a
             report is not among them
    hashes   file and SHA-256 of what identifies the run
    is_single   whether it is the folder of a single arm
    kind     STUDY trains models: its page names what was not run. ALIGNMENT fine-tunes or aligns one, or
             prepares data for it; IMPORTED: nothing of the model's training is known; RESULTS belong to
             a Hugging Face folder. Without a model: CORPUS, REPLACEMENT (of an activation), JUDGE
    """

    root: Path
    name: str
    recipe: str
    overrides: tuple[str, ...]
    manifest: ManifestFile | None
    arms: tuple[ArmView, ...]
    steps: tuple[tuple[str, float], ...]
    hashes: tuple[tuple[str, str], ...]
    is_single: bool
    kind: str = STUDY

    def inside(self, arm: ArmView) -> str:
        """The folder of an arm with its final slash, for naming files: "arms/xielu/"."""
        return f"{arm.place}/" if arm.place else ""

    def folder_of(self, arm: ArmView) -> str:
        """The folder of an arm as a command names it: "runs/demo/arms/xielu"."""
        return f"{self.name}/{arm.place}" if arm.place else self.name

    def files(self, arms: Sequence[ArmView], name: str) -> str:
        """One file of several arms, for captions: "arms/{swiglu,xielu}/metrics.jsonl"."""
        if len(arms) == 1:
            return f"{self.inside(arms[0])}{name}"
        return f"arms/{{{','.join(arm.name for arm in arms)}}}/{name}"

    def command(self, verb: str, arms: Sequence[ArmView]) -> str:
        """`stamm VERB` of the whole run, or of each of some arms: "stamm audit runs/demo"."""
        whole = len(arms) == len(self.arms)
        folders = [self.name] if whole else [self.folder_of(arm) for arm in arms]
        return " && ".join(f"stamm {verb} {folder}" for folder in folders)

    def made_by(self) -> str:
        """The command that made the run, as a shell reads it; "" when nothing was recorded."""
        return shlex.join(self.manifest.command) if self.manifest else ""


def open_view(folder: Path) -> RunView:
    """The run in `folder`: a whole study, the folder of a single arm, or results of a Hugging Face folder.

    Raises   RunError when the folder is missing or holds no run; DataError when a file in it is
             not what it should be.
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder", fix="Name the folder of a run")
    if is_results_folder(folder):
        return _results(folder)
    config = read_record_if_present(ConfigFile, folder / "config.json")
    has_arms = (folder / "arms").is_dir()
    single = (folder / "metrics.jsonl").exists() or (
        config is not None
        # The run of an imported model has the kind of its only arm.
        and (config.kind in (_PRETRAIN, FINETUNE) or (config.kind == IMPORT and not has_arms))
    )
    if not single and config is None and not has_arms:
        raise RunError(
            f"{folder} holds no run: neither config.json nor arms/",
            fix="Name the folder that `stamm run` wrote",
        )
    manifest = _manifest(folder)
    arms = (_arm(folder, "", 0),) if single else _arms(folder, config)
    return RunView(
        root=folder,
        name=one_line(shlex.quote(_path_in_commands(folder, manifest)), _LONGEST_PATH),
        recipe=(config.recipe if config else "") or folder.resolve().name,
        overrides=config.overrides if config else (),
        manifest=manifest,
        arms=arms,
        steps=_steps(folder / "steps"),
        hashes=_hashes(folder),
        is_single=single,
        kind=_kind(folder, arms),
    )


def is_results_folder(folder: Path) -> bool:
    """Whether a folder has results of `stamm evaluate` or `stamm audit` of a Hugging Face folder."""
    own = not (folder / "config.json").exists() and not (folder / "arms").exists()
    patterns = (
        "*_items.jsonl",
        "blimp_pairs.jsonl",
        "memorization.json",
        "audit/memorization.json",
    )
    return own and any(any(folder.glob(pattern)) for pattern in patterns)


def _results(folder: Path) -> RunView:
    """The results of a Hugging Face folder, as a run of one arm without training."""
    name = one_line(folder.resolve().name, _LONGEST_NAME)
    below = folder / "audit"
    arm = ArmView(
        name=name,
        number=0,
        place="",
        folder=folder,
        evaluate=folder,
        audit=below if below.is_dir() else folder,
        kind="",
        manifest=None,
    )
    return RunView(
        root=folder,
        name="FOLDER",  # commands name the model's folder, which is not recorded
        recipe=name,
        overrides=(),
        manifest=None,
        arms=(arm,),
        steps=(),
        hashes=(),
        is_single=True,
        kind=RESULTS,
    )


def _kind(folder: Path, arms: Sequence[ArmView]) -> str:
    answers = (_ANSWERS, f"answers/*/{_ALIGNED}", f"arms/*/{_ANSWERS}")
    for pattern in answers:  # without one, the page would be that of another kind of run
        check_present(folder, pattern)
    aligned = any(arm.kind == FINETUNE for arm in arms) or any(
        any(folder.glob(pattern)) for pattern in (*answers, f"*/{_ROWS}", f"*/*/{_ROWS}")
    )
    if not arms:
        for name, kind in _WITHOUT_ARMS.items():
            if is_present(folder / name) and not (kind == CORPUS and aligned):
                return kind
    if arms and all(arm.kind == IMPORT for arm in arms):
        return IMPORTED
    return ALIGNMENT if aligned else STUDY


def _path_in_commands(folder: Path, manifest: ManifestFile | None) -> str:
    """The run's path as the command that made it had it, or as given when it now lies elsewhere.

    The recorded one is preferred: the page is then the same from wherever it is written.
    """
    resolved = folder.resolve()
    is_arm = resolved.parent.name == "arms"
    top = resolved.parent.parent if is_arm else resolved
    recorded = _recorded_path(manifest.command if manifest else ())
    if recorded is None or recorded.name != top.name:
        return str(folder)
    return str(recorded / "arms" / resolved.name if is_arm else recorded)


def _recorded_path(command: Sequence[str]) -> Path | None:
    """The folder that a recorded `stamm run` wrote: its --out, or else runs/RECIPE."""
    if list(command[:2]) != ["stamm", "run"]:
        return None
    words = iter(command[2:])
    recipe = None
    for word in words:
        if word == "--out":
            out = next(words, "")
            return Path(out) if out else None
        if word.startswith("--out="):
            return Path(word.removeprefix("--out="))
        if recipe is None and not word.startswith("-"):
            recipe = word
    return Path("runs") / recipe if recipe else None


def _arm(folder: Path, place: str, number: int) -> ArmView:
    path = folder / "config.json"
    config = read_record_if_present(ConfigFile, path)
    seeded = _Seeded()
    if config is not None and config.kind != IMPORT:
        seeded = decode(_Seeded, config.config, str(path), "config")
    return ArmView(
        name=one_line(folder.name if place else folder.resolve().name, _LONGEST_NAME),
        number=number,
        place=place,
        folder=folder,
        evaluate=folder / "evaluate",
        audit=folder / "audit",
        kind=config.kind if config else "",
        manifest=_manifest(folder),
        seed=seeded.seed,
    )


def _arms(folder: Path, config: ConfigFile | None) -> tuple[ArmView, ...]:
    root = folder / "arms"
    present = {path.name for path in root.iterdir() if path.is_dir()} if root.is_dir() else set()
    for name in sorted(present):
        if not _NAME.fullmatch(name):
            raise DataError(
                f"{root} holds a folder {name!r}, which is not a name of an arm",
                fix="Arms are named with letters, digits, - and _; move the folder away",
            )
    ordered = [name for name in _configured(folder, config) if name in present]
    ordered += sorted(present - set(ordered))
    return tuple(_arm(root / name, f"arms/{name}", n) for n, name in enumerate(ordered))


def _configured(folder: Path, config: ConfigFile | None) -> Sequence[str]:
    if config is None or config.config is None:
        return ()
    study = decode(_StudyConfig, config.config, str(folder / "config.json"), "config")
    return [arm.name for arm in study.arms]


def _manifest(folder: Path) -> ManifestFile | None:
    return read_record_if_present(ManifestFile, folder / "manifest.json", MANIFEST_FIX)


def _steps(folder: Path) -> tuple[tuple[str, float], ...]:
    # the report's own receipt comes after the page: a page written again would differ by it
    receipts = [read_record(ReceiptFile, path) for path in sorted(folder.glob("*.json"))]
    ended = sorted((receipt.ended, receipt.step, receipt.seconds) for receipt in receipts)
    return tuple((name, seconds) for _, name, seconds in ended if name != _REPORT)


def _hashes(folder: Path) -> tuple[tuple[str, str], ...]:
    named = (
        "config.json", "corpus/summary.json", "tokenizer/tokenizer.json", "pack/manifest.json",
    )  # fmt: skip
    models = sorted((folder / "arms").glob("*/model/model.safetensors"))
    paths = [folder / name for name in (*named, "model/model.safetensors")] + models
    present = [path for path in paths if path.is_file()]
    for path in present:
        check_file(path)
    return tuple((path.relative_to(folder).as_posix(), file_sha256(path)) for path in present)
