"""Safetensors files of a folder for transformers, written tensor by tensor.

Beyond the tensors given, memory holds one converted tensor; of mapped tensors, the one being written.

Source   format: https://huggingface.co/docs/safetensors; index: transformers, SAFE_WEIGHTS_INDEX_NAME
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from stamm.base.files import atomic, canonical_json, write_json
from stamm.models.hf_files import INDEX, WEIGHTS
from stamm.models.mapped_weights import drop_pages

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}


def write_weights(
    folder: Path, state: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype], max_bytes: int
) -> None:
    """Write model.safetensors, or shards of at most `max_bytes` and their index.

    dtypes   of each tensor in the file: float32 or bfloat16

    Edge     a tensor larger than `max_bytes` has a shard of its own
    Raises   RunError when no space is left.
    """
    sizes = {name: tensor.numel() * dtypes[name].itemsize for name, tensor in state.items()}
    shards = split_shards(sizes, max_bytes)
    if len(shards) == 1:
        _write(folder / WEIGHTS, {name: state[name] for name in shards[0]}, dtypes)
        return
    table = {}
    for number, names in enumerate(shards, 1):
        file = shard_file(number, len(shards))
        _write(folder / file, {name: state[name] for name in names}, dtypes)
        table.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": table}
    write_json(folder / INDEX, index)


def split_shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Names of the tensors of each file, from their bytes."""
    shards: list[list[str]] = [[]]
    for name in sorted(sizes):
        if shards[-1] and sum(sizes[each] for each in shards[-1]) + sizes[name] > max_bytes:
            shards.append([])
        shards[-1].append(name)
    return shards


def shard_file(number: int, count: int) -> str:
    """The name of one of several files, counted from 1."""
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def _write(path: Path, state: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype]) -> None:
    # Wider elements first, so that every tensor is aligned.
    names = sorted(state, key=lambda name: (-dtypes[name].itemsize, name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name in names:
        stop = place + state[name].numel() * dtypes[name].itemsize
        header[name] = {
            "dtype": _NAMES[dtypes[name]],
            "shape": list(state[name].shape),
            "data_offsets": [place, stop],
        }
        place = stop
    text = canonical_json(header)
    text += b" " * (-len(text) % 8)
    with atomic(path) as temporary, temporary.open("wb") as out:
        out.write(len(text).to_bytes(8, "little"))
        out.write(text)
        for name in names:
            stored = state[name].detach().to(dtypes[name]).contiguous()
            out.write(stored.flatten().view(torch.uint8).numpy().data)
            drop_pages(state[name])
