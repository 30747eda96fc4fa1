"""Files of a model folder, and the SHA-256 of its weights in what was measured or exported from them.

Results of `evaluate`, `audit` and `export` hold it under `model_sha256`. They replace only results of
the same weights; results of other weights are moved to a folder beside.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Protocol, TypeVar

from stamm.adapt.records import ChangeFile
from stamm.base.errors import DataError
from stamm.base.files import read_json, sha256_file
from stamm.base.receipts import is_present
from stamm.base.schema import read_record, read_record_if_present, write_record
from stamm.chat.records import ChatModelFile

DECODER = "decoder.json"
WEIGHTS = "model.safetensors"
WEIGHTS_KEY = "weights_sha256"
KEY = "model_sha256"
CHAT = "chat.json"
CHANGE = "change.json"
HEAD = "head.safetensors"
"""Of a reward model, beside its decoder."""
_DIGITS = 8


class _Result(Protocol):
    @property
    def model_sha256(self) -> str | None:
        """SHA-256 of the weights that it was made from."""


R = TypeVar("R", bound=_Result)


def weights_sha256(model: Path) -> str:
    """SHA-256 of the weights in the model folder `model`, as decoder.json records it.

    Edge     computed for models of versions that did not record it.
    """
    stored = read_json(model / DECODER)
    recorded = stored.get(WEIGHTS_KEY) if isinstance(stored, dict) else None
    return str(recorded) if recorded else sha256_file(model / WEIGHTS)


def write_chat_record(model: Path, name: str, sha256: str) -> None:
    """Write chat.json into the folder of a fine-tuned model: the chat format it was trained with.

    name, sha256   of the chat format
    """
    write_record(model / CHAT, ChatModelFile, {"format": name, "sha256": sha256})


def read_chat_record(model: Path) -> ChatModelFile | None:
    """The chat format that a model was trained with; None when it was not fine-tuned."""
    return read_record_if_present(ChatModelFile, model / CHAT)


def write_change(model: Path, change: ChangeFile) -> None:
    """Write change.json into the folder of a changed model."""
    write_record(model / CHANGE, ChangeFile, asdict(change))


def read_change(model: Path) -> ChangeFile | None:
    """The change of a model after its training; None when there was none."""
    return read_record_if_present(ChangeFile, model / CHANGE)


def set_aside(folder: Path, sha256: str) -> Path | None:
    """Move the results in `folder` to FOLDER-<8 digits> if they were made from other weights.

    sha256   of the weights that the new results are made from

    Returns  the folder they were moved to, None when nothing was moved.
    Edge     results that do not name their weights are moved to FOLDER-unknown.
    """
    other_hashes = {
        sha for path in sorted(folder.glob("*.json")) if (sha := recorded_sha256(path)) != sha256
    }
    if not other_hashes:
        return None
    aside = aside_folder(folder, other_hashes.pop() if len(other_hashes) == 1 else None)
    aside.mkdir(exist_ok=True)
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):  # the items of an evaluation in progress
            path.replace(aside / path.name)
    return aside


def aside_folder(folder: Path, sha256: str | None) -> Path:
    """The folder beside `folder` for results of the weights `sha256`; None: unknown weights."""
    return folder.with_name(f"{folder.name}-{sha256[:_DIGITS] if sha256 else 'unknown'}")


def check_same_weights(made_from: str | None, where: str, model: Path) -> None:
    """Check that a result was made from the weights that the model folder now has.

    made_from   model_sha256 of the result
    where       the result, for the message

    Raises   DataError with both hashes when it was not.
    Edge     nothing is checked where one of the two does not name its weights.
    """
    if made_from is None or not is_present(model / DECODER):
        return
    stored = read_json(model / DECODER)
    current = stored.get(WEIGHTS_KEY) if isinstance(stored, dict) else None
    if current is not None and made_from != current:
        raise DataError(
            f"{where} was made from weights with SHA-256 {made_from[:12]}, and {model} has"
            f" {str(current)[:12]}",
            fix="Repeat it with `stamm evaluate`, `audit` or `export`: earlier results are kept beside",
        )


def read_result(kind: type[R], path: Path, model: Path | None) -> R:
    """The record in `path` of a result of a model.

    model    its folder, whose weights are compared with those of the result; None: not compared

    Raises   DataError when the file does not follow its schema, or as `check_same_weights`
    """
    record = read_record(kind, path)
    if model is not None:
        check_same_weights(record.model_sha256, str(path), model)
    return record


def read_result_if_present(kind: type[R], path: Path, model: Path | None) -> R | None:
    """As `read_result`; None when `path` does not exist."""
    return read_result(kind, path, model) if is_present(path) else None


def recorded_sha256(path: Path) -> str | None:
    """The `model_sha256` of a result; None when it is damaged or of an earlier version."""
    try:
        plain = read_json(path)
    except DataError:
        return None
    sha256 = plain.get(KEY) if isinstance(plain, dict) else None
    return sha256 if isinstance(sha256, str) else None
