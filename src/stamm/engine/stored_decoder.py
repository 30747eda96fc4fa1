"""Start a run from a stored decoder: `decoder.json` and `model.safetensors`, read shard by shard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from stamm.base.errors import DataError
from stamm.engine.distributed import DistributedContext
from stamm.engine.parallel import local_region, local_shard
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder
from stamm.models.lora import base_parameters
from stamm.models.mapped_weights import drop_pages
from stamm.models.serialization import checked_config, map_decoder
from stamm.runs.model_outputs import DECODER, WEIGHTS, weights_sha256


def is_stored_decoder(path: Path) -> bool:
    """Whether `path` is the folder of a stored decoder, not that of a checkpoint."""
    return (path / DECODER).is_file()


def load_stored_decoder(folder: Path, model: nn.Module, world: DistributedContext) -> str:
    """Copy the weights of the decoder stored in `folder` into `model`; the SHA-256 of the weights.

    model    may be sharded over the processes: each reads its shards only. Adapters keep their
             values
    Raises   DataError, in every process, when files are missing or damaged, and when the model has
             another activation, vocabulary, head width, tensor or shape
    Edge     settings that no tensor depends on, such as the rotary base, may differ
    Checked  tests/unit/engine/test_stored_decoder.py
    """
    sha256 = ""
    failure: DataError | None = None
    if world.is_main_process:
        try:
            stored = checked_config(folder)
            sha256 = weights_sha256(folder)
            if isinstance(model, Decoder):
                check_config(f"the decoder in {folder}", stored, model.config)
        except DataError as error:
            failure = error
    sha256, failure = world.broadcast_object((sha256, failure))
    if failure is None:
        try:
            _copy(folder, base_parameters(model))
        except DataError as error:
            failure = error
    failures = [failed for failed in world.all_gather_object(failure) if failed is not None]
    if failures:
        raise failures[0]
    return str(sha256)


def check_config(holder: str, stored: DecoderConfig, model: DecoderConfig) -> None:
    """Check the settings that the shapes of tensors do not determine.

    holder   what has the configuration `stored`, for the message
    Raises   DataError when it is another model
    """
    there, here = stored.ffn.spec, model.ffn.spec
    pairs: list[tuple[str, object, object]] = [
        ("vocab_size", stored.vocab_size, model.vocab_size),
        ("tied_embeddings", stored.tied_embeddings, model.tied_embeddings),
        ("head_dim", stored.head_width, model.head_width),
    ]
    if there.content_hash != here.content_hash:
        pairs.insert(0, ("ffn.activation", f"{there.name!r}", f"{here.name!r}"))
    for name, stored_setting, wanted_setting in pairs:
        if stored_setting != wanted_setting:
            raise DataError(
                f"{holder} has {name} = {stored_setting}, and this run has model.{name} = {wanted_setting}",
                fix=f"Set model.{name}={stored_setting}, or start from another model",
            )


@torch.no_grad()
def _copy(folder: Path, parameters: Mapping[str, Tensor]) -> None:
    path, stored = folder / WEIGHTS, map_decoder(folder)
    shapes = {name: tuple(tensor.shape) for name, tensor in stored.items()}
    _check_tensors(path, shapes, {n: tuple(p.shape) for n, p in parameters.items()})
    for name, parameter in parameters.items():
        shard = local_shard(parameter)
        if shard.numel():
            shard.copy_(stored[name][local_region(parameter)])
            drop_pages(stored[name])


def _check_tensors(
    path: Path, stored: Mapping[str, tuple[int, ...]], model: Mapping[str, tuple[int, ...]]
) -> None:
    for names, others, where, elsewhere in (
        (model, stored, "this model", path),
        (stored, model, path, "this model"),
    ):
        for name in names:
            if name not in others:
                raise DataError(
                    f"{where} has the tensor {name}, and {elsewhere} does not",
                    fix="Use the model configuration of its decoder.json",
                )
    for name, shape in model.items():
        if stored[name] != shape:
            raise DataError(
                f"{name} has shape {stored[name]} in {path} and {shape} in this model",
                fix="Use the model configuration of its decoder.json",
            )
