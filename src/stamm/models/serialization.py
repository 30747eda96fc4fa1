"""A stored decoder: `decoder.json` (configuration, activation, hash) and `model.safetensors`. No pickle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from stamm.activations.module import Activation
from stamm.base.config import from_plain, to_plain
from stamm.base.errors import DataError
from stamm.base.files import link, read_json, sha256_file, write_json
from stamm.base.receipts import check_file, file_sha256
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder, build_blank, decoder_of
from stamm.models.mapped_weights import map_weights, own_float32
from stamm.models.weight_shards import StoredTensor, write_tensors
from stamm.runs.model_outputs import DECODER, WEIGHTS, WEIGHTS_KEY

SCHEMA = 2
_TENSORS = "tensors"  # in decoder.json: name in the file by parameter, where they differ
_EMBEDDING, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
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
    state = decoder.state_dict()
    kept = {name: tensor.dtype for name, tensor in state.items()} | dict(dtypes or {})
    save_weights(decoder.config, state.__getitem__, folder, kept)


def save_weights(
    config: DecoderConfig,
    read: Callable[[str], Tensor],
    folder: Path,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> None:
    """Write the decoder of `config` into `folder`, one tensor after the other, as `save_decoder` does.

    read     the values of a parameter by its name, of any dtype, not divided over processes; called
             when it is written
    dtypes   of tensors in the file, by name: float32, the default, or bfloat16

    Memory   one tensor, and what `read` holds
    """
    blank = build_blank(config)
    constants = _constants(blank)
    tensors = {
        name: StoredTensor(tuple(tensor.shape), (dtypes or {}).get(name, torch.float32))
        for name, tensor in blank.state_dict().items()
        # A tied output matrix has the same numbers as the embedding.
        if not (config.tied_embeddings and name == _OUTPUT)
    }
    path = folder / WEIGHTS
    write_tensors(path, tensors, lambda name: constants[name] if name in constants else read(name))
    write_json(folder / DECODER, {**describe_decoder(config), WEIGHTS_KEY: sha256_file(path)})


def link_weights(config: DecoderConfig, file: Path, names: Mapping[str, str], folder: Path) -> bool:
    """Store the decoder of `config` without a copy of its weights; False where that is not possible.

    model.safetensors in `folder` becomes a hard link to `file`, and decoder.json names its tensors.

    file    a safetensors file with every parameter, in float32 or bfloat16
    names   of the tensors in the file, by the names of the parameters
    Edge    a change of `file` in place changes the stored decoder, too; the check of its SHA-256 fails
    """
    if not link(file, folder / WEIGHTS):
        return False
    sha256 = sha256_file(folder / WEIGHTS)
    described = describe_decoder(config)
    write_json(folder / DECODER, {**described, _TENSORS: dict(names), WEIGHTS_KEY: sha256})
    return True


@torch.no_grad()
def _constants(blank: Decoder) -> dict[str, Tensor]:
    """Constants of activations that are stored beside the parameters, by name."""
    constants: dict[str, Tensor] = {}
    for name, module in blank.named_modules():
        if isinstance(module, Activation) and any(True for _ in module.buffers(recurse=False)):
            module.to_empty(device="cpu")
            module.reset_parameters()
            constants |= {
                f"{name}.{key}": buffer for key, buffer in module.named_buffers(recurse=False)
            }
    return constants


def stored_config(folder: Path) -> DecoderConfig:
    """The configuration of the decoder stored in `folder`, by decoder.json alone.

    Raises   DataError for a file that does not describe a decoder
    """
    path = folder / DECODER
    stored = read_json(path)
    try:
        plain = stored["decoder"]
    except (TypeError, KeyError) as error:
        raise _not_described(path, error) from None
    return from_plain(DecoderConfig, plain, str(path))


def _not_described(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} does not describe a decoder: {error} is missing")


def checked_config(folder: Path) -> DecoderConfig:
    """The configuration of the decoder stored in `folder`, after a check of its files.

    Raises   DataError when the folder has none, when this version of stamm derives another
             activation under its name, and when the weights do not have the recorded SHA-256
    Edge     weights of versions that did not record a SHA-256 are not checked
    """
    path = folder / DECODER
    config, stored = stored_config(folder), read_json(path)
    try:
        trained_with = str(stored["activation"]["content_hash"])
    except (TypeError, KeyError) as error:
        raise _not_described(path, error) from None
    spec = config.ffn.spec
    if spec.content_hash != trained_with:
        raise DataError(
            f"activation {spec.name!r} had content hash {trained_with[:12]}"
            f" when the model was trained and has {spec.content_hash[:12]} here",
            where=str(path),
            fix="Use the version of stamm that trained it",
        )
    _check_weights(folder / WEIGHTS, stored)
    return config


def load_decoder(folder: Path, *, mapped: bool = False) -> Decoder:
    """The decoder stored in `folder`, float32.

    mapped   weights that are stored in float32 are not in memory but pages of the file, as
             `map_weights`, to be read only

    Memory   the decoder, and one tensor while it is read
    Raises   what `checked_config` raises, and DataError when tensors are missing, extra or of
             another shape
    """
    config = checked_config(folder)
    state = map_decoder(folder)
    for name, tensor in state.items():
        if not (mapped and tensor.dtype == torch.float32):
            state[name] = own_float32(tensor)
    return _decoder(folder, config, state)


def load_frozen_decoder(folder: Path) -> Decoder:
    """The decoder stored in `folder`, for forward passes over many tokens.

    Matrices of the layers that are stored in bfloat16 stay pages of the file; their products have the
    bits of float32 (`FrozenLinear`). All other weights are float32.

    Memory   the pages that were read, which processes share and the system may drop; the rest
    Raises   what `load_decoder` raises
    """
    config = checked_config(folder)
    state = map_decoder(folder)
    modules = build_blank(config).named_modules()
    linear = {f"{name}.weight" for name, m in modules if type(m) is nn.Linear}
    frozen = {n for n, t in state.items() if t.dtype == torch.bfloat16 and n in linear - {_OUTPUT}}
    for name, tensor in state.items():
        if name not in frozen:
            state[name] = own_float32(tensor)
    return _decoder(folder, config, state, frozen)


def map_decoder(folder: Path) -> dict[str, Tensor]:
    """The tensors of a stored decoder by name, as pages of its file (`map_weights`).

    Raises   DataError when the file cannot be read, or lacks a tensor that decoder.json names
    """
    path = folder / WEIGHTS
    check_file(path)
    try:
        state = map_weights(path)
    except (OSError, SafetensorError, KeyError, ValueError) as error:  # KeyError: an unknown dtype
        raise DataError(f"{path} cannot be read: {error}") from None
    names = read_json(folder / DECODER).get(_TENSORS)
    if names is None:
        return state
    try:
        return {name: state[stored] for name, stored in names.items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not fit {DECODER}: {error}") from None


def _decoder(
    folder: Path, config: DecoderConfig, state: dict[str, Tensor], frozen: Collection[str] = ()
) -> Decoder:
    if config.tied_embeddings and _EMBEDDING in state:
        state[_OUTPUT] = state[_EMBEDDING]
    try:
        return decoder_of(config, state, frozen)
    except RuntimeError as error:
        raise DataError(f"{folder / WEIGHTS} does not fit {DECODER}: {error}") from None


def stored_types(folder: Path) -> dict[str, torch.dtype]:
    """The dtype of each tensor of a stored decoder, by name: bfloat16, or float32 for any other type.

    Raises   DataError when the file cannot be read
    """
    return {
        name: torch.bfloat16 if tensor.dtype == torch.bfloat16 else torch.float32
        for name, tensor in map_decoder(folder).items()
    }


def _check_weights(path: Path, stored: dict[str, Any]) -> None:
    recorded = stored.get(WEIGHTS_KEY)
    if recorded is None and stored.get("schema") == WITHOUT_HASH:
        check_file(path)
        return
    try:
        check_file(path)
        sha256 = file_sha256(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if sha256 != recorded:
        raise DataError(
            f"{path} has SHA-256 {sha256[:12]}, and {DECODER} records {str(recorded)[:12]}",
            fix="The weights were changed after they were written: restore both files",
        )
