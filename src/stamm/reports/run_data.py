"""A run folder as one value: request, steps, and measurements of each arm.

Only files with a schema are read; no job is imported. A part that was not run is None.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.base.errors import DataError, RunError
from stamm.base.receipts import check_file, file_sha256
from stamm.base.schema import decode, read_record, read_record_if_present
from stamm.reports.alignment_results import AlignedArm, read_aligned, read_prepared, read_samples
from stamm.reports.corpus_evaluations import evaluations_table
from stamm.reports.corpus_record import Corpus, read_corpus, read_pack, read_vocabulary
from stamm.reports.figure import DataTable
from stamm.reports.paired import REFERENCE
from stamm.reports.results import Measured, read_measured, read_results_folder
from stamm.reports.reward_models import TrainedReward, read_reward_models
from stamm.reports.task_comparison import TaskDifference, compare_tasks
from stamm.reports.text import one_line
from stamm.reports.training import FINETUNE, IMPORT, ArmTraining, read_training
from stamm.runs.manifest import MANIFEST_FIX
from stamm.runs.schemas.adaptation import SwapFile
from stamm.runs.schemas.alignment import SampleAnswersFile
from stamm.runs.schemas.corpus import PackManifest, TokenizerSummary
from stamm.runs.schemas.evaluation import MemorizationFile
from stamm.runs.schemas.prepared_data import PreparedSummary
from stamm.runs.schemas.run import ConfigFile, ManifestFile, ReceiptFile

_REPORT = "report"
_START_AUDIT = Path("start_audit", "memorization.json")
_SWAP = Path("swap", "swap.json")
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
class ArmResults:
    """One trained candidate.

    number   its place in the study, which gives its colour
    place    its folder relative to the run folder, "" for a run of one arm
    """

    name: str
    number: int
    place: str
    manifest: ManifestFile | None
    training: ArmTraining
    measured: Measured


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """The content of a page.

    name     the run folder's path as commands on the page write it, quoted: "runs/demo", or
             "runs/demo/arms/xielu" for an arm
    steps    name and seconds of each finished step, in the order in which they ended; writing a
             report is not among them
    hashes   file and SHA-256 of what identifies the run
    evaluations   the evaluation sets that a screen looked for
    aligned       answers of aligned models; () where none were evaluated
    prepared      summaries of prepared alignment data, by folder
    samples         answers before and after fine-tuning, by arm
    reward_models   arms that are reward models, with their held-out accuracy
    start_memorization   audit of the model that an alignment run started from
    swap          fit of a replaced activation
    differences   names of two arms, and their differences on evaluation tasks from files
    is_results    whether it has only the results of a Hugging Face folder
    """

    name: str
    recipe: str
    overrides: tuple[str, ...]
    manifest: ManifestFile | None
    corpus: Corpus | None
    vocabulary: TokenizerSummary | None
    pack: PackManifest | None
    evaluations: DataTable
    arms: tuple[ArmResults, ...]
    steps: tuple[tuple[str, float], ...]
    hashes: tuple[tuple[str, str], ...]
    is_single: bool
    aligned: tuple[AlignedArm, ...]
    prepared: tuple[tuple[str, PreparedSummary], ...]
    samples: tuple[tuple[str, SampleAnswersFile], ...] = ()
    reward_models: tuple[TrainedReward, ...] = ()
    start_memorization: MemorizationFile | None = None
    swap: SwapFile | None = None
    differences: tuple[tuple[str, str, tuple[TaskDifference, ...]], ...] = ()
    is_results: bool = False

    def inside(self, arm: ArmResults) -> str:
        """The folder of an arm with its final slash, for naming files: "arms/xielu/"."""
        return f"{arm.place}/" if arm.place else ""

    def folder_of(self, arm: ArmResults) -> str:
        """The folder of an arm as a command names it: "runs/demo/arms/xielu"."""
        return f"{self.name}/{arm.place}" if arm.place else self.name

    def files(self, arms: Sequence[ArmResults], name: str) -> str:
        """One file of several arms, for captions: "arms/{swiglu,xielu}/metrics.jsonl"."""
        if len(arms) == 1:
            return f"{self.inside(arms[0])}{name}"
        return f"arms/{{{','.join(arm.name for arm in arms)}}}/{name}"

    @property
    def is_alignment(self) -> bool:
        """Whether a model was fine-tuned or aligned, or data prepared for it."""
        tuned = any(arm.training.kind == FINETUNE for arm in self.arms)
        return tuned or bool(self.aligned or self.prepared)

    @property
    def is_imported(self) -> bool:
        """Whether the model was imported: nothing of its training is known."""
        return bool(self.arms) and all(arm.training.kind == IMPORT for arm in self.arms)

    def made_by(self) -> str:
        """The command that made the run, as a shell reads it; "" when nothing was recorded."""
        return shlex.join(self.manifest.command) if self.manifest else ""

    @property
    def same_tokens(self) -> bool:
        """Whether all arms were trained on the same tokens in the same order.

        True when seed, number of tokens and the hash of the packed corpus are recorded and equal.
        """
        facts = [
            (
                arm.training.seed,
                arm.training.summary.trained_tokens,
                pack.sha256 if (pack := arm.manifest.inputs.get("pack")) else None,
            )
            for arm in self.arms
            if arm.training.summary and arm.manifest
        ]
        known = len(facts) == len(self.arms) and all(None not in fact for fact in facts)
        return known and len(set(facts)) == 1


def collect(run_folder: Path) -> RunResults:
    """The run in `run_folder`: a whole study, or the folder of a single arm.

    Raises   RunError when the folder is missing or holds no run; DataError when a file in it is
             not what it should be.
    """
    if not run_folder.is_dir():
        raise RunError(f"{run_folder} is not a folder", fix="Name the folder of a run")
    config = read_record_if_present(ConfigFile, run_folder / "config.json")
    has_arms = (run_folder / "arms").is_dir()
    single = (run_folder / "metrics.jsonl").exists() or (
        config is not None
        # The run of an imported model has the kind of its only arm.
        and (config.kind in ("pretrain", FINETUNE) or (config.kind == IMPORT and not has_arms))
    )
    if not single and config is None and not has_arms:
        raise RunError(
            f"{run_folder} holds no run: neither config.json nor arms/",
            fix="Name the folder that `stamm run` wrote",
        )
    manifest = _manifest(run_folder)
    arms = _single(run_folder, manifest) if single else _arms(run_folder, config)
    return RunResults(
        name=one_line(shlex.quote(_path_in_commands(run_folder, manifest)), _LONGEST_PATH),
        recipe=(config.recipe if config else "") or run_folder.resolve().name,
        overrides=config.overrides if config else (),
        manifest=manifest,
        corpus=read_corpus(run_folder / "corpus"),
        vocabulary=read_vocabulary(run_folder / "tokenizer"),
        pack=read_pack(run_folder / "pack"),
        evaluations=evaluations_table(run_folder / "screened"),
        arms=arms,
        steps=_steps(run_folder / "steps"),
        hashes=_hashes(run_folder),
        is_single=single,
        aligned=read_aligned(
            run_folder, () if single else tuple((arm.name, arm.number) for arm in arms)
        ),
        prepared=read_prepared(run_folder),
        samples=read_samples(run_folder, [(arm.name, arm.place) for arm in arms]),
        reward_models=read_reward_models(run_folder, [(arm.name, arm.place) for arm in arms]),
        start_memorization=read_record_if_present(MemorizationFile, run_folder / _START_AUDIT),
        swap=read_record_if_present(SwapFile, run_folder / _SWAP),
        differences=_differences(run_folder, [arm for arm in arms if arm.measured.tasks]),
    )


def collect_results(folder: Path) -> RunResults:
    """The results of a Hugging Face folder, as a run of one arm without training.

    Raises   DataError when a file in it is not what it should be.
    """
    name = one_line(folder.resolve().name, _LONGEST_NAME)
    arm = ArmResults(
        name=name,
        number=0,
        place="",
        manifest=None,
        training=read_training(folder),
        measured=read_results_folder(folder),
    )
    return RunResults(
        name="FOLDER",  # commands name the model's folder, which is not recorded
        recipe=name,
        overrides=(),
        manifest=None,
        corpus=None,
        vocabulary=None,
        pack=None,
        evaluations=evaluations_table(folder / "screened"),
        arms=(arm,),
        steps=(),
        hashes=(),
        is_single=True,
        aligned=(),
        prepared=(),
        is_results=True,
    )


def _differences(
    run_folder: Path, arms: Sequence[ArmResults]
) -> tuple[tuple[str, str, tuple[TaskDifference, ...]], ...]:
    """Every arm against the reference arm, or the first, on the tasks from files of both."""
    if not any(task.identity for arm in arms for task in arm.measured.tasks):
        return ()
    base = next((arm for arm in arms if arm.name == REFERENCE), arms[0])
    folders = {arm.name: run_folder / arm.place / "evaluate" for arm in arms}
    return tuple(
        (base.name, arm.name, compare_tasks(folders[base.name], folders[arm.name]))
        for arm in arms
        if arm is not base
    )


def _path_in_commands(run_folder: Path, manifest: ManifestFile | None) -> str:
    """The run's path as the command that made it had it, or as given when it now lies elsewhere.

    The recorded one is preferred: the page is then the same from wherever it is written.
    """
    resolved = run_folder.resolve()
    is_arm = resolved.parent.name == "arms"
    top = resolved.parent.parent if is_arm else resolved
    recorded = _recorded_path(manifest.command if manifest else ())
    if recorded is None or recorded.name != top.name:
        return str(run_folder)
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


def _single(folder: Path, manifest: ManifestFile | None) -> tuple[ArmResults, ...]:
    training = read_training(folder)
    return (
        ArmResults(
            name=one_line(folder.resolve().name, _LONGEST_NAME),
            number=0,
            place="",
            manifest=manifest,
            training=training,
            measured=read_measured(folder),
        ),
    )


def _arms(run_folder: Path, config: ConfigFile | None) -> tuple[ArmResults, ...]:
    root = run_folder / "arms"
    present = {path.name for path in root.iterdir() if path.is_dir()} if root.is_dir() else set()
    for name in sorted(present):
        if not _NAME.fullmatch(name):
            raise DataError(
                f"{root} holds a folder {name!r}, which is not a name of an arm",
                fix="Arms are named with letters, digits, - and _; move the folder away",
            )
    ordered = [name for name in _configured(run_folder, config) if name in present]
    ordered += sorted(present - set(ordered))
    return tuple(
        ArmResults(
            name=name,
            number=number,
            place=f"arms/{name}",
            manifest=_manifest(root / name),
            training=read_training(root / name),
            measured=read_measured(root / name),
        )
        for number, name in enumerate(ordered)
    )


def _configured(run_folder: Path, config: ConfigFile | None) -> Sequence[str]:
    if config is None or config.config is None:
        return ()
    study = decode(_StudyConfig, config.config, str(run_folder / "config.json"), "config")
    return [arm.name for arm in study.arms]


def _manifest(folder: Path) -> ManifestFile | None:
    return read_record_if_present(ManifestFile, folder / "manifest.json", MANIFEST_FIX)


def _steps(folder: Path) -> tuple[tuple[str, float], ...]:
    # the report's own receipt comes after the page: a page written again would differ by it
    receipts = [read_record(ReceiptFile, path) for path in sorted(folder.glob("*.json"))]
    ended = sorted((one.ended, one.step, one.seconds) for one in receipts)
    return tuple((name, seconds) for _, name, seconds in ended if name != _REPORT)


def _hashes(run_folder: Path) -> tuple[tuple[str, str], ...]:
    named = (
        "config.json", "corpus/summary.json", "tokenizer/tokenizer.json", "pack/manifest.json",
    )  # fmt: skip
    models = sorted((run_folder / "arms").glob("*/model/model.safetensors"))
    paths = [run_folder / name for name in (*named, "model/model.safetensors")] + models
    present = [path for path in paths if path.is_file()]
    for path in present:
        check_file(path)
    return tuple((path.relative_to(run_folder).as_posix(), file_sha256(path)) for path in present)
