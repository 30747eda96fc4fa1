"""Trained models as the functions of verbs use them: the arms of a folder, their settings, inputs and results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from stamm.base.config import from_plain, override
from stamm.base.console import Console
from stamm.base.errors import RunError
from stamm.base.files import read_json
from stamm.base.receipts import CONFIG, check_file
from stamm.base.schema import read_record_if_present
from stamm.base.user_code import check_stored_code
from stamm.engine.checkpoint_files import checkpoint_folder, checkpoint_steps
from stamm.recipes.unread_settings import check_changes
from stamm.runs.arms import input_of_arm, prepared_data_of_arm, trained_arms
from stamm.runs.command_receipts import recorded, writing_alone
from stamm.runs.manifest import MANIFEST_FIX
from stamm.runs.records import ManifestFile
from stamm.runs.run import Run

C = TypeVar("C")
R = TypeVar("R")
# Settings that may name code of the user's own.
_CODE = {"evaluate": "tasks", "export": "target", "report": "sections"}


class Results(Mapping[Path, R]):
    """Results of a verb by model; a record is read on access.

    places   the folder, or the file, of each model's results: in a dry run, where they would be
    """

    def __init__(self, places: Mapping[Path, Path], read: Callable[[Path], R]) -> None:
        self.places = dict(places)
        self._read = read

    def __getitem__(self, model: str | os.PathLike[str]) -> R:
        return self._read(self.places[Path(model)])

    def __contains__(self, model: object) -> bool:
        return isinstance(model, str | os.PathLike) and Path(model) in self.places

    def __iter__(self) -> Iterator[Path]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    @property
    def only(self) -> R:
        """The record of the one model.

        Raises   RunError when there are several.
        """
        if len(self.places) != 1:
            named = ", ".join(map(str, self.places))
            raise RunError(
                f"there are results of {len(self.places)} models", fix=f"Name one: {named}"
            )
        return self._read(*self.places.values())


def arms_of(root: Path) -> list[Path]:
    """The arms of a run folder that hold a trained model.

    Raises   RunError when `root` is not a run folder, or holds no trained model.
    """
    check_run_folder(root)
    arms = trained_arms(root)
    if not arms:
        raise RunError(f"{root} holds no trained model yet", fix="Finish its run first")
    return arms


def one_arm_of(root: Path) -> Path:
    """The one arm of a run folder that holds a trained model.

    Raises   RunError as `arms_of`, and when there are several.
    """
    arms = arms_of(root)
    if len(arms) > 1:
        named = ", ".join(map(str, arms))
        raise RunError(f"{root} holds {len(arms)} trained models", fix=f"Name one: {named}")
    return arms[0]


def check_run_folder(root: Path) -> None:
    """Raise RunError when `root` is not a run folder."""
    if not (root / "config.json").is_file():
        raise RunError(f"{root} is not a run folder", fix="`stamm ls runs` lists them")


def places_of(arms: Sequence[Path], verb: str, out: str | os.PathLike[str] | None) -> list[Path]:
    """The output folder of each arm: inside the arm, or under `out`.

    Raises   RunError when one is a file.
    """
    if not out:
        return [arm / verb for arm in arms]
    folders = [Path(out)] if len(arms) == 1 else [Path(out) / arm.name for arm in arms]
    for folder in (Path(out), *folders):
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{folder} is a file", fix="Choose another folder with --out")
    return folders


def check_no_out(out: str | os.PathLike[str] | None) -> None:
    """Raise RunError for an output folder of a verb that keeps the results of a run in it."""
    if out:
        raise RunError("--out is for Hugging Face folders", fix="Results of a run are kept in it")


def checkpoints_of(arm: Path) -> list[Path]:
    """The checkpoints of an arm, in the order of their steps.

    Raises   RunError when it has none.
    """
    steps = checkpoint_steps(arm / "checkpoints")
    if not steps:
        raise RunError(f"{arm} holds no checkpoints", fix="Keep more with checkpoint_every")
    return [checkpoint_folder(arm / "checkpoints", step) for step in steps]


@contextmanager
def writing(
    verb: str, run: Path, arm: Path, folder: Path, *, alone: bool = True
) -> Iterator[Console]:
    """Write the results of a verb for an arm of `run` to `folder`, while that run is not executed.

    A receipt in the run records what was written, also when the verb fails.

    alone    refuse a second process of the verb in the folder
    Raises   RunError when another process uses the run, or the folder; DataError when config.json, whose
             hash the receipt has, is not what it should be
    """
    if (run / CONFIG).is_file():
        check_file(run / CONFIG)
    folder.mkdir(parents=True, exist_ok=True)
    with (
        Run(run, "", (), None).locked(shared=True),
        writing_alone(folder, verb) if alone else nullcontext(),
        recorded(run, f"{verb}.{arm.resolve().name}", folder),
        closing(Console()) as console,
    ):
        yield console


def inputs_of(arm: Path, names: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Path]:
    """The model of an arm, and the inputs called `names`; one that is `optional` may be missing."""
    inputs = {"model": arm / "model"}
    for name in names:
        try:
            inputs[name] = input_of_arm(arm, name)
        except RunError:
            if name not in optional:
                raise
    return inputs


def evaluation_inputs(arm: Path) -> dict[str, Path]:
    """The inputs of an evaluation of an arm: it may have no packed corpus."""
    return inputs_of(arm, ("pack", "tokenizer"), optional=("pack",))


def export_inputs(arm: Path) -> dict[str, Path]:
    """The inputs of an export of an arm: an aligned or imported one may have no packed corpus."""
    manifest = read_record_if_present(ManifestFile, arm / "manifest.json", MANIFEST_FIX)
    never_packed = manifest is not None and "pack" not in manifest.inputs
    optional = ("pack",) if never_packed or prepared_data_of_arm(arm) else ()
    return inputs_of(arm, ("pack", "tokenizer"), optional)


def changed_settings(root: Path, verb: str, kind: type[C], changes: Sequence[str]) -> C:
    """The run's own settings for `verb`, or the defaults, with the changes.

    Raises   ConfigError for code of the run's settings that the changes do not name.
    """
    config = changed(settings_of(root, verb, kind), changes)
    fix = f"name it on the command line: {_CODE.get(verb, '')}=mine.py:Name"
    check_stored_code(config, str(root / "config.json"), changes, fix)
    return config


def changed(given: C, changes: Sequence[str]) -> C:
    """The settings `given` with the changes.

    Raises   ConfigError for a change that is not read
    """
    config = override(given, changes)
    check_changes(config, given, changes)
    return config


def settings_of(root: Path, verb: str, kind: type[C]) -> C:
    """The run's own settings for `verb`, or the defaults when it has none.

    So repeating a measurement gives the recorded result unless settings are changed.
    """
    path = root / "config.json"
    stored: Any = read_json(path)
    config = stored.get("config") if isinstance(stored, dict) else None
    # `evaluate` of a recipe that is one training job is the evaluation during training.
    section = config.get(verb) if isinstance(config, dict) and "model" not in config else None
    return kind() if section is None else from_plain(kind, section, str(path))
