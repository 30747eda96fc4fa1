"""The arms of a run folder: where their models are, and the inputs that they were trained with."""

from __future__ import annotations

from pathlib import Path

from stamm.base.errors import RunError
from stamm.base.receipts import is_present
from stamm.base.schema import read_record
from stamm.runs.manifest import MANIFEST_FIX
from stamm.runs.records import ManifestFile

_MODEL = Path("model", "decoder.json")
_PREPARED = "examples.parquet"


def trained_arms(root: Path) -> list[Path]:
    """Folders of the arms of `root` that have a trained model; `root` itself when it is an arm.

    Raises   DataError for an arm whose trained model is missing
    """
    arms = sorted((root / "arms").iterdir()) if (root / "arms").is_dir() else [root]
    return [arm for arm in arms if is_present(arm / _MODEL)]


def run_of_arm(arm: Path) -> Path:
    """The run folder that an arm belongs to: the arm itself for a run of one model."""
    if arm.parent.name == "arms":
        return arm.parent.parent
    # "." inside an arm and its bare name next to other arms are arms too.
    resolved = arm.resolve()
    return resolved.parent.parent if resolved.parent.name == "arms" else arm


def prepared_data_of_arm(arm: Path) -> list[Path]:
    """Folders of prepared alignment data that an arm was trained on, first stage first.

    They are followed by the manifests of the arm and of the arms that it started from. A folder
    that was moved or removed is left out.

    Raises   DataError for a damaged manifest
    """
    prepared: list[Path] = []
    seen: set[Path] = set()
    stages = [arm.resolve()]
    while stages:
        stage = stages.pop()
        manifest = stage / "manifest.json"
        if stage in seen or not manifest.is_file():
            continue
        seen.add(stage)
        inputs = read_record(ManifestFile, manifest, MANIFEST_FIX).inputs
        paths = [(stage / source.path).resolve() for source in inputs.values()]
        prepared = [
            path for path in paths if (path / _PREPARED).is_file() and path not in prepared
        ] + prepared
        stages += [path.parent for path in paths if path.name == _MODEL.parent.name]
    return prepared


def input_of_arm(arm: Path, name: str) -> Path:
    """The folder of an arm's input ("pack", "tokenizer", "corpus").

    It is looked up beside the arms, then where the arm's manifest recorded it.

    Raises   RunError when it is found in neither place; DataError for a damaged manifest
    """
    beside = run_of_arm(arm) / name
    if beside.is_dir():
        return beside
    manifest = arm / "manifest.json"
    record = read_record(ManifestFile, manifest, MANIFEST_FIX) if manifest.is_file() else None
    inputs = record.inputs if record else {}
    for recorded in ([inputs[name]] if name in inputs else []) + list(inputs.values()):
        path = (arm / recorded.path).resolve()
        if path.name == name and path.is_dir():
            return path
        if (path.parent / name).is_dir():
            return path.parent / name
    raise RunError(f"the {name} of {arm} is not found", where=str(manifest))
