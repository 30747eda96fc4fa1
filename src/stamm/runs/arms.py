"""The arms of a run folder: where their models are, and the inputs that they were trained with."""

from __future__ import annotations

from pathlib import Path

from stamm.base.errors import RunError
from stamm.base.files import read_json
from stamm.runs.manifest import MANIFEST_FIX

_MODEL = Path("model", "decoder.json")


def trained_arms(root: Path) -> list[Path]:
    """Folders of the arms of `root` that have a trained model; `root` itself when it is an arm."""
    if (root / "arms").is_dir():
        return sorted(path for path in (root / "arms").iterdir() if (path / _MODEL).is_file())
    return [root] if (root / _MODEL).is_file() else []


def run_of_arm(arm: Path) -> Path:
    """The run folder that an arm belongs to: the arm itself for a run of one model."""
    if arm.parent.name == "arms":
        return arm.parent.parent
    # "." inside an arm and its bare name next to other arms are arms too.
    resolved = arm.resolve()
    return resolved.parent.parent if resolved.parent.name == "arms" else arm


def input_of_arm(arm: Path, name: str) -> Path:
    """The folder of an arm's input ("pack", "tokenizer", "corpus").

    It is looked up beside the arms, then where the arm's manifest recorded it.

    Raises   RunError when it is found in neither place.
    """
    beside = run_of_arm(arm) / name
    if beside.is_dir():
        return beside
    manifest = arm / "manifest.json"
    inputs = read_json(manifest, MANIFEST_FIX).get("inputs", {}) if manifest.is_file() else {}
    for recorded in ([inputs[name]] if name in inputs else []) + list(inputs.values()):
        path = Path(arm / str(recorded["path"])).resolve()
        if path.name == name and path.is_dir():
            return path
        if (path.parent / name).is_dir():
            return path.parent / name
    raise RunError(f"the {name} of {arm} is not found", where=str(manifest))
