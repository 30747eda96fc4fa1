"""Which tile a product is computed in, and whether that was measured to be worth it.

Results stand in one file for each kind of device, in the folder of the kernels' sources. What was
measured with other versions of torch, Triton or stamm does not count.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

import stamm
from stamm.activations.fused.build import folder
from stamm.base.errors import DataError, RunError
from stamm.base.files import read_json, write_json

Step = Literal["forward", "backward"]
_SCHEMA = 1
_DESCRIBED = (9, 0)  # the first compute capability with a unit that moves tiles
_ENOUGH = 128  # tiles that keep a large GPU busy


@dataclass(frozen=True, kw_only=True)
class Shape:
    """(rows, depth) times (depth, columns): tokens, hidden dimension, width of the block."""

    rows: int
    columns: int
    depth: int


@dataclass(frozen=True, kw_only=True)
class Tile:
    """How a product is cut up. Bits depend on tall, wide and deep, and on nothing else here.

    tall, wide    rows and columns of the result that a program computes at a time
    deep          of the inner dimension, what is multiplied at a time
    group         tiles that stand below each other and are computed one after another
    descriptors   tiles are moved by the GPU's unit for tiles, not by pointers
    parts         pieces in which a tile is finished: 1, 2 or 4
    resident      programs for each multiprocessor, with descriptors; else there is one a tile
    """

    tall: int
    wide: int
    deep: int
    warps: int
    stages: int
    group: int = 8
    descriptors: bool = False
    parts: int = 1
    resident: int = 1


# Compiled for an H100 or an A100, xielu in whole tiles needs no more registers than there are; gelu
# in the widest spills up to 136 bytes a thread. None of them has been timed on a GPU yet.
_DESCRIBED_TILES = (
    Tile(tall=128, wide=256, deep=64, warps=8, stages=3, descriptors=True, parts=4),
    Tile(tall=128, wide=256, deep=64, warps=8, stages=4, descriptors=True, parts=4),
    Tile(tall=128, wide=256, deep=64, warps=8, stages=3, descriptors=True, parts=4, group=16),
    Tile(tall=128, wide=128, deep=64, warps=8, stages=4, descriptors=True, parts=2),
    Tile(tall=64, wide=128, deep=64, warps=4, stages=3, descriptors=True, parts=2, resident=2),
)
_POINTED_TILES = (
    Tile(tall=128, wide=256, deep=32, warps=8, stages=3, parts=4),
    Tile(tall=128, wide=128, deep=64, warps=8, stages=3, parts=2),
    Tile(tall=128, wide=128, deep=32, warps=8, stages=4, parts=2),
    Tile(tall=64, wide=128, deep=32, warps=4, stages=4, parts=2),
)


def candidates(shape: Shape, *, descriptors: bool) -> tuple[Tile, ...]:
    """The tiles worth trying: none is twice as tall as the result, the smallest excepted."""
    known = _DESCRIBED_TILES if descriptors else _POINTED_TILES
    fitting = tuple(tile for tile in known if tile.tall < 2 * shape.rows)
    return fitting or known[-1:]


def tile_for(step: Step, shape: Shape, dtype: torch.dtype, device: torch.device, key: str) -> Tile:
    """The tile that was measured to be the fastest, or what the shape alone decides.

    key      the content hash of the kernel
    """
    found = _found(step, shape, dtype, device, key)
    if found is not None:
        return _complete(device, found)[0]
    known = candidates(shape, descriptors=described(device))
    large = (tile for tile in known if _tiles(shape, tile) >= _ENOUGH)
    return next(large, known[-1])


def measured_faster(
    step: Step, shape: Shape, dtype: torch.dtype, device: torch.device, key: str
) -> bool:
    """Whether the product with the pass in it beat the library's product and the pass after it.

    key      the content hash of the kernel
    Edge     False where nothing was measured, or with other versions. A process asks the file once
             for each product: a measurement counts from the next process on.
    Raises   DataError when the file of results cannot be read.
    Checked  tests/unit/activations/test_fused_gemm.py
    """
    found = _found(step, shape, dtype, device, key)
    return found is not None and _complete(device, found)[1]


def record(
    step: Step,
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    key: str,
    tile: Tile,
    result: dict[str, Any],
) -> None:
    """Keep what was measured, in the place of an earlier result.

    result   "faster", and whatever else is to be kept beside it
    Raises   RunError when there is no folder to keep it in; DataError for a file that is damaged.
    """
    path = results_file(device)
    if path is None:
        raise RunError("there is no home folder to keep what was measured")
    held = _results(path) if path.is_file() else {}
    held[_name(step, shape, dtype, key)] = {
        "versions": _versions(),
        "tile": asdict(tile),
        **result,
    }
    write_json(path, {"schema": _SCHEMA, "device": device_name(device), "results": held})


def results_file(device: torch.device) -> Path | None:
    """Where results of a kind of device stand; None without a home folder."""
    place = folder()
    name = "".join(c if c.isalnum() else "-" for c in device_name(device).lower())
    return None if place is None else place / f"gemm-{name}.json"


def device_name(device: torch.device) -> str:
    """What the device calls itself; "cpu" where the interpreter stands for it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def described(device: torch.device) -> bool:
    """Whether the device has a unit that moves tiles."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return nvidia and torch.cuda.get_device_capability(device) >= _DESCRIBED


@lru_cache(maxsize=1024)
def _found(
    step: Step, shape: Shape, dtype: torch.dtype, device: torch.device, key: str
) -> dict[str, Any] | None:
    path = results_file(device)
    if path is None or not path.is_file():
        return None
    entry = _results(path).get(_name(step, shape, dtype, key))
    if entry is not None and not isinstance(entry, dict):
        raise DataError(f"{path} holds {entry!r} as a result", fix="Delete it and measure again")
    return entry if entry and entry.get("versions") == _versions() else None


def _results(path: Path) -> dict[str, Any]:
    held = read_json(path)
    results = held.get("results") if isinstance(held, dict) else None
    if not isinstance(results, dict) or held.get("schema") != _SCHEMA:
        raise DataError(f"{path} holds no results of products", fix="Delete it and measure again")
    return results


def _complete(device: torch.device, entry: dict[str, Any]) -> tuple[Tile, bool]:
    try:
        return Tile(**entry["tile"]), entry["faster"] is True
    except (KeyError, TypeError) as error:
        raise DataError(
            f"a result in {results_file(device)} lacks what it must hold: {error}",
            fix="Delete the file and measure again",
        ) from error


def _name(step: Step, shape: Shape, dtype: torch.dtype, key: str) -> str:
    size = f"{shape.rows}x{shape.columns}x{shape.depth}"
    return f"{step} {size} {str(dtype).removeprefix('torch.')} {key}"


@lru_cache(maxsize=1)
def _versions() -> str:
    return f"torch {torch.__version__}, triton {version('triton')}, stamm {stamm.__version__}"


def _tiles(shape: Shape, tile: Tile) -> int:
    return math.ceil(shape.rows / tile.tall) * math.ceil(shape.columns / tile.wide)
