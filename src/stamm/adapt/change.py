"""First and last part of every change of a trained model: the model and its texts; the changed one and its record."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from stamm.adapt.config import TextConfig
from stamm.adapt.records import ChangeFile
from stamm.adapt.texts import Texts, two_texts
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import canonical_json, remove_leftovers
from stamm.base.schema import write_record
from stamm.models.decoder import Decoder
from stamm.models.determinism import set_determinism
from stamm.models.loading import open_model
from stamm.models.model_source import ModelSource
from stamm.models.serialization import save_decoder
from stamm.runs.job import Workspace
from stamm.runs.manifest import new_manifest
from stamm.runs.model_outputs import (
    HEAD,
    read_chat_record,
    weights_sha256,
    write_change,
    write_chat_record,
)
from stamm.runs.records import ConfigFile, ManifestFile

_NOT_SETTINGS = ("text", "tokens", "batch_tokens", "threads")  # of the texts, which have hashes
_LONGEST_SETTING = 400


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The model that is changed, and the texts of the change."""

    decoder: Decoder
    sha256: str
    texts: Texts


def open_parent(config: TextConfig, workspace: Workspace) -> Parent:
    """The model of inputs["start"] with its texts; the job's folder without leftovers.

    Raises   ConfigError for a reward model, or without a text; DataError when a file is damaged
    """
    inputs = workspace.inputs
    remove_leftovers(workspace.folder)
    set_determinism(config.threads)
    start = open_model(ModelSource(model=inputs["start"], tokenizer=inputs["tokenizer"]))
    if (inputs["start"] / HEAD).is_file():
        raise ConfigError(f"{inputs['start']} is a reward model", fix="Name a language model")
    texts = two_texts(config, workspace, start)
    return Parent(decoder=start.decoder, sha256=start.sha256, texts=texts)


def check_tokens(parent: Parent, where: str) -> None:
    """Raise DataError when the calibration text has fewer tokens than a block has units."""
    width, texts = parent.decoder.config.ffn.width, parent.texts
    if texts.calibration.tokens < width:
        raise DataError(
            f"the {texts.fitted_name} has {texts.calibration.tokens} tokens, fewer than the {width} units of a block",
            fix=f"Name more text, or raise {where}",
        )


def store_change(
    kind: str,
    config: TextConfig,
    workspace: Workspace,
    parent: Parent,
    changed: Decoder,
    losses: tuple[float, float],
) -> ChangeFile:
    """Write model/ with the changed decoder and change.json, config.json, manifest.json.

    losses   of the parent and of the changed decoder

    Raises   ConfigError when the loss after the change is not finite
    """
    folder, inputs = workspace.folder, workspace.inputs
    loss, changed_loss = losses
    if not math.isfinite(changed_loss):
        raise ConfigError(
            f"the loss with {changed.config.ffn.spec.name} is not finite",
            fix="Choose another activation",
        )
    save_decoder(changed, folder / "model")
    if chat := read_chat_record(inputs["start"]):
        write_chat_record(folder / "model", chat.format, chat.sha256)
    plain = to_plain(config).items()
    settings = {n: canonical_json(v).decode() for n, v in plain if n not in _NOT_SETTINGS}
    change = ChangeFile(
        change=kind,
        model_sha256=weights_sha256(folder / "model"),
        parent_sha256=parent.sha256,
        calibration=parent.texts.calibration,
        measured=parent.texts.reported,
        settings={name: text[:_LONGEST_SETTING] for name, text in settings.items()},
        loss=loss,
        changed_loss=changed_loss,
    )
    write_change(folder / "model", change)
    write_origin(kind, config, workspace)
    return change


def write_origin(kind: str, config: TextConfig, workspace: Workspace) -> None:
    """Write config.json and manifest.json."""
    folder = workspace.folder
    write_record(folder / "config.json", ConfigFile, {"kind": kind, "config": to_plain(config)})
    places = {n: {"path": os.path.relpath(path, folder)} for n, path in workspace.inputs.items()}
    manifest = new_manifest(kind=kind, threads=config.threads, inputs=places)
    write_record(folder / "manifest.json", ManifestFile, manifest)
