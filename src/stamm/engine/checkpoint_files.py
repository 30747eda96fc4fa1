"""Files of a checkpoint: the names of the folders, state.json with its own hash, headers of shards."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.base.files import read_json, sha256_value, write_bytes, write_json
from stamm.base.json_text import parse_json
from stamm.engine.events import SCHEMA as EVENTS_SCHEMA
from stamm.engine.events import read_events
from stamm.runs.metrics import lines_up_to

SCHEMA = 3
STATE = "state.json"
PART, GONE = ".part", ".gone"  # endings of a folder that is being written, and being deleted
_SEAL = "state_sha256"
_STATE_KEYS = {"schema", "step", "counts", "sha256", "metrics_sha256", _SEAL}
_NAME = re.compile(r"step-(\d{8})")


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in `folder`, damaged ones included, in order."""
    if not folder.is_dir():
        return []
    matches = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match.group(1)) for match in matches if match)


def checkpoint_folder(folder: Path, step: int, ending: str = "") -> Path:
    """The checkpoint of a step in `folder`; with PART or GONE, its hidden name while it changes."""
    return folder / f"{'.' if ending else ''}step-{step:08d}{ending}"


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write state.json of the checkpoint at `path`, with its schema and its own hash."""
    whole = {"schema": SCHEMA, **state}
    write_json(path / STATE, whole | {_SEAL: sha256_value(whole)})


def read_state(path: Path) -> dict[str, Any]:
    """The content of state.json of the checkpoint at `path`, without its own hash.

    Raises   DataError when it is damaged or of another schema
    """
    state = read_json(path / STATE)
    if not isinstance(state, dict) or "schema" not in state:
        raise DataError(f"{STATE} is not the state of a checkpoint")
    if state["schema"] != SCHEMA:
        raise DataError(f"{STATE} has schema {state['schema']!r}, not {SCHEMA}")
    if not state.keys() >= _STATE_KEYS:
        raise DataError(f"{STATE} is incomplete")
    if state.pop(_SEAL) != sha256_value(state):
        raise DataError(f"{STATE} has changed since it was written")
    return dict(state)


def branch_from(source: Path, step: int, folder: Path) -> None:
    """Copy the state of the run in `source` after `step` to a new run, which then resumes from it.

    Checkpoint, metrics and events up to it, as if the new run had written them; the checkpoint last.

    Edge     a run that has a checkpoint is left as it is; 0: nothing is copied
    """
    checkpoints = folder / "checkpoints"
    if not step or checkpoint_steps(checkpoints):
        return
    write_bytes(folder / "metrics.jsonl", lines_up_to(source / "metrics.jsonl", step))
    events = [event for event in read_events(source / "events.json") if event["step"] <= step]
    if events:
        write_json(folder / "events.json", {"schema": EVENTS_SCHEMA, "events": events})
    part = checkpoint_folder(checkpoints, step, PART)
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(checkpoint_folder(source / "checkpoints", step), part)
    part.replace(checkpoint_folder(checkpoints, step))


def order_names(path: Path) -> None:
    """Sort the metadata of a safetensors header: safetensors writes it in any order."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        described = parse_json(file.read(size))
        described["__metadata__"] = dict(sorted(described.get("__metadata__", {}).items()))
        ordered = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
        if len(ordered) > size:
            raise OSError(f"{path.name} has a header that cannot be put in order")
        file.seek(8)
        file.write(ordered.ljust(size))
