"""Memory-mapped tensors of a safetensors file: read when they are used, dropped when they are not.

Source   format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import math
import mmap
import weakref
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
_FILES: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()


def map_weights(path: Path) -> dict[str, Tensor]:
    """The floating-point tensors of a safetensors file, as pages of the file.

    Memory   pages that were read; the system, or `drop_pages`, may drop them at any time
    Edge     the tensors can be changed, but `drop_pages` undoes it; the file never changes
    Raises   OSError; SafetensorError for a damaged file; KeyError for another dtype
    Checked  tests/unit/models/test_mapped_weights.py
    """
    with safe_open(path, framework="pt"):  # checks the header
        pass
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    _FILES[torch.frombuffer(pages, dtype=torch.uint8).data_ptr()] = pages
    begin = 8 + int.from_bytes(pages[:8], "little")
    header = json.loads(pages[8:begin])
    header.pop("__metadata__", None)
    return {
        name: torch.frombuffer(
            pages,
            dtype=_DTYPES[entry["dtype"]],
            count=math.prod(entry["shape"]),
            offset=begin + entry["data_offsets"][0],
        ).view(entry["shape"])
        for name, entry in header.items()
    }


def own_float32(tensor: Tensor) -> Tensor:
    """A copy of a mapped tensor in float32, after which its pages are dropped."""
    copied = tensor.to(torch.float32, copy=True)
    drop_pages(tensor)
    return copied


def drop_pages(tensor: Tensor) -> None:
    """Drop the pages of a mapped tensor from memory; its next use reads them again.

    Edge     does nothing to a tensor that is not one of `map_weights`
    """
    start = tensor.data_ptr()
    stop = start + tensor.numel() * tensor.element_size()
    for first, pages in _FILES.items():
        if first <= start and stop <= first + len(pages):
            offset = (start - first) // mmap.PAGESIZE * mmap.PAGESIZE
            pages.madvise(mmap.MADV_DONTNEED, offset, stop - first - offset)
