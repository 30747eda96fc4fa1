"""A stored decoder: `decoder.json` (configuration, activation, hash) and `model.safetensors`. No pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from stamm.base.config import from_plain, to_plain
from stamm.base.errors import DataError
from stamm.base.files import atomic, read_json, sha256_file, write_json
from stamm.base.receipts import check_file, file_sha256
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder, decoder_of
from stamm.models.linear import structured_linears
from stamm.models.mapped_weights import map_weights
from stamm.runs.model_outputs import DECODER, WEIGHTS, WEIGHTS_KEY

SCHEMA = 2
WITHOUT_HASH = 1
"""Schema of versions that did not always record the SHA-256 of the weights."""


def describe_decoder(config: DecoderConfig) -> dict[str, Any]:
    """The content of decoder.json without the hash; the activation has its spec's content hash."""
    spec = config.ffn.spec
    return {
        "schema": SCHEMA,
        "decoder": to_plain(config),
        "activation": {"name": spec.name, "content_hash": spec.content_hash},
    }


def save_decoder(
    decoder: Decoder, folder: Path, dtypes: Mapping[str, torch.dtype] | None = None
) -> None:
    """Write `decoder` into `folder`; the description comes last, with the SHA-256 of the weights.

    dtypes   of tensors in the file, by name; others keep theirs

    Guides of structured matrices serve training only and are not stored.
    """
    guides = {f"{name}.guide" for name, _ in structured_linears(decoder)}
    state = {
        name: tensor.to((dtypes or {}).get(name, tensor.dtype)).contiguous()
        for name, tensor in decoder.state_dict().items()
        if name not in guides
    }
    if decoder.config.tied_embeddings:
        del state["lm_head.weight"]  # the same numbers as model.embed_tokens.weight
    with atomic(folder / WEIGHTS) as temporary:
        save_file(state, temporary)
    described = describe_decoder(decoder.config)
    write_json(folder / DECODER, {**described, WEIGHTS_KEY: sha256_file(folder / WEIGHTS)})


def checked_config(folder: Path) -> DecoderConfig:
    """The configuration of the decoder stored in `folder`, after a check of its files.

    Raises   DataError when the folder has none, when this version of stamm derives another
             activation under its name, and when the weights do not have the recorded SHA-256
    Edge     weights of versions that did not record a SHA-256 are not checked
    """
    stored = read_json(folder / DECODER)
    where = str(folder / DECODER)
    try:
        plain, activation = stored["decoder"], stored["activation"]
        trained_with = str(activation["content_hash"])
    except (TypeError, KeyError) as error:
        raise DataError(f"{where} does not describe a decoder: {error} is missing") from None
    config = from_plain(DecoderConfig, plain, where)
    spec = config.ffn.spec
    if spec.content_hash != trained_with:
        raise DataError(
            f"activation {spec.name!r} had content hash {trained_with[:12]}"
            f" when the model was trained and has {spec.content_hash[:12]} here",
            where=where,
            fix="Use the version of stamm that trained it",
        )
    _check_weights(folder / WEIGHTS, stored)
    return config


def load_decoder(folder: Path, *, mapped: bool = False) -> Decoder:
    """The decoder stored in `folder`.

    mapped   its weights are not in memory but pages of the file, as `map_weights`, to be read only

    Raises   what `checked_config` raises, and DataError when tensors are missing, extra or of
             another shape
    """
    config = checked_config(folder)
    try:
        state = (map_weights if mapped else load_file)(folder / WEIGHTS)
    except (OSError, SafetensorError, KeyError) as error:  # KeyError: an unknown dtype
        raise DataError(f"{folder / WEIGHTS} cannot be read: {error}") from None
    if config.tied_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    try:
        return decoder_of(config, state)
    except RuntimeError as error:
        raise DataError(f"{folder / WEIGHTS} does not fit {DECODER}: {error}") from None


def stored_types(folder: Path) -> dict[str, torch.dtype]:
    """The dtype of each tensor of a stored decoder, by name: bfloat16, or float32 for any other type.

    Raises   DataError when the file cannot be read
    """
    path = folder / WEIGHTS
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    return {
        name: torch.bfloat16 if kind == "BF16" else torch.float32 for name, kind in kinds.items()
    }


def _check_weights(path: Path, stored: dict[str, Any]) -> None:
    recorded = stored.get(WEIGHTS_KEY)
    if recorded is None and stored.get("schema") == WITHOUT_HASH:
        check_file(path)
        return
    try:
        check_file(path)
        found = file_sha256(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if found != recorded:
        raise DataError(
            f"{path} has SHA-256 {found[:12]}, and {DECODER} records {str(recorded)[:12]}",
            fix="The weights were changed after they were written: restore both files",
        )
