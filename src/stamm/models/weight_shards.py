"""Safetensors files, written tensor by tensor.

Beyond the tensors given, memory holds one converted tensor; of mapped tensors, the one being written.

Source   format: https://huggingface.co/docs/safetensors; index: transformers, SAFE_WEIGHTS_INDEX_NAME
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from stamm.base.files import atomic, write_json
from stamm.models.hf_files import INDEX, WEIGHTS
from stamm.models.mapped_weights import drop_pages

_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


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
        _write(folder / WEIGHTS, shards[0], state, dtypes)
        return
    table = {}
    for number, names in enumerate(shards, 1):
        file = shard_file(number, len(shards))
        _write(folder / file, names, state, dtypes)
        table.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": table}
    write_json(folder / INDEX, index)


def split_shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Names of the tensors of each file, from their bytes."""
    shards: list[list[str]] = [[]]
    for name in sorted(sizes):
        if shards[-1] and sum(sizes[other] for other in shards[-1]) + sizes[name] > max_bytes:
            shards.append([])
        shards[-1].append(name)
    return shards


def shard_file(number: int, count: int) -> str:
    """The name of one of several files, counted from 1."""
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def _write(
    path: Path,
    names: Sequence[str],
    state: Mapping[str, Tensor],
    dtypes: Mapping[str, torch.dtype],
) -> None:
    tensors = {name: StoredTensor(tuple(state[name].shape), dtypes[name]) for name in names}
    write_tensors(path, tensors, lambda name: state[name], exported=True)


class StoredTensor(NamedTuple):
    """Shape and dtype of a tensor in a file."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def write_tensors(
    path: Path,
    tensors: Mapping[str, StoredTensor],
    read: Callable[[str], Tensor],
    *,
    exported: bool = False,
) -> None:
    """Write a safetensors file, with the bytes of `safetensors.torch.save_file`.

    read      the values of a tensor by its name, of any dtype; called once for each, as it is written
    exported  the header names the format "pt" for transformers, and its keys are sorted

    Raises   RunError when no space is left.
    Checked  tests/unit/models/test_stored_weights.py
    """
    # Wider elements first, so that every tensor is aligned.
    order = list(_NAMES)
    names = sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}} if exported else {}
    start = 0
    for name in names:
        shape, dtype = tensors[name]
        stop = start + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    plain = json.dumps(header, separators=(",", ":"), ensure_ascii=False, sort_keys=exported)
    text = plain.encode()
    text += b" " * (-len(text) % 8)
    with atomic(path) as temporary, temporary.open("wb") as out:
        out.write(len(text).to_bytes(8, "little"))
        out.write(text)
        for name in names:
            values = read(name).detach()
            stored = values.to(tensors[name].dtype).contiguous()
            out.write(stored.flatten().view(torch.uint8).numpy().data)
            drop_pages(values)
