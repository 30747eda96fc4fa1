"""Files of the fused Triton kernels in a folder for the kernels hub.

Each pass (forward, and backward with the sums of the parameters) is one generated file, once for
16-bit tensors and once for float32. All parameters are read when a kernel runs, so that a value
other than the initial one is computed, too. The files need torch and triton alone.

Checked  tests/unit/release/test_kernel_folder.py, tests/unit/release/kernel_folder_cases.py
"""

from __future__ import annotations

import torch

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fused import gpu
from stamm.activations.fused.passes import PLAIN, graph_of
from stamm.activations.fused.triton_source import source, tables
from stamm.activations.spec import Spec

STORED = {"16": torch.bfloat16, "32": torch.float32}
_RUNTIME = '''"""Launches of the fused kernels, and the tensors that they can compute.

A backward pass computes the gradient of x and the sums of the parameters together. A program adds up
{block:,} elements in float32, and programs are added up in float64 in an order that depends on the
number of elements only, so that equal inputs give equal bits.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import lru_cache

import torch
from torch import Tensor

_BLOCK, _ADDED, _WARPS = {block}, {added}, {warps}
_WIDTHS = {{torch.bfloat16: "16", torch.float16: "16", torch.float32: "32"}}


def reason(x: Tensor) -> str | None:
    """Why the fused kernels cannot compute x, or None where they can."""
    if not x.is_cuda:
        return f"x is on the device {{x.device.type}}, and the fused kernels need CUDA"
    if x.dtype not in _WIDTHS:
        return f"x is {{x.dtype}}, and the fused kernels compute {{', '.join(map(str, _WIDTHS))}}"
    if x.numel() == 0:
        return "x is empty"
    return _machine()


@lru_cache(maxsize=1)
def _machine() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if torch.version.hip is not None:
        return "the GPU is AMD's, and these kernels were compiled for NVIDIA's"
    found = torch.cuda.get_device_capability()
    if found < {capability}:
        return "the GPU has compute capability {{}}.{{}}, and {needed} is needed".format(*found)
    return None


@torch.compiler.disable
def forward(x: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
    """f(x), contiguous, in the dtype of x."""
    x = x.contiguous()
    result = torch.empty_like(x)
    _run("forward", [x], result, parameters, sums=0)
    return result


@torch.compiler.disable
def backward(
    weight: Tensor, x: Tensor, parameters: tuple[Tensor, ...]
) -> tuple[Tensor, list[Tensor]]:
    """weight f'(x), and the sum of weight df/dp for each trainable parameter."""
    x = x.contiguous()
    result = torch.empty_like(x)
    read = [weight.to(x.dtype).contiguous(), x]
    sums = _run("backward", read, result, parameters, sums={trainable})
    return result, list(sums)


def _run(
    name: str, read: list[Tensor], written: Tensor, parameters: tuple[Tensor, ...], sums: int
) -> Tensor:
    module = importlib.import_module(f"._{{name}}_{{_WIDTHS[written.dtype]}}", __package__)
    count = written.numel()
    parts = -(-count // _BLOCK)
    given = [p.detach().to(written.device).reshape(-1) for p in parameters]
    partial = torch.empty(sums, parts, 1, dtype=torch.float32, device=written.device)
    table = _table(module.TABLE, written.device)
    arguments = [*read, written, *given, table, partial, count]
    options = {{"BLOCK": _BLOCK, "WHOLE": count % _BLOCK == 0, "num_warps": _WARPS}}
    if written.dtype != torch.float16:  # whose range does not reach subnormal numbers of float32
        options["enable_reflect_ftz"] = False
    with torch.cuda.device_of(written):
        _launch(module.run, parts, arguments, options)
        while sums and (parts > 1 or partial.dtype != torch.float64):
            groups = -(-parts // _ADDED)
            added = torch.empty(sums, groups, 1, dtype=torch.float64, device=written.device)
            sizes = {{"TALL": _ADDED, "WIDE": 1, "num_warps": _WARPS}}
            _launch(module.add, sums * groups, [partial, added, parts, 1], sizes)
            partial, parts = added, groups
    return partial[:, 0, 0] if sums else partial


def _launch(kernel, programs, arguments, options):
    kernel[(programs,)](*arguments, **options)


@lru_cache(maxsize=8)
def _table(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32, device=device)
'''


def triton_files(spec: Spec) -> dict[str, str]:
    """The text of each file of the fused kernels of `spec`, by name."""
    kernel = kernel_of(spec)
    read = tuple(None for _ in spec.parameters)
    files = {
        "_fused.py": _RUNTIME.format(
            block=gpu.BLOCK,
            added=gpu.ADDED,
            warps=gpu.WARPS,
            capability=gpu.CAPABILITY,
            needed=".".join(map(str, gpu.CAPABILITY)),
            trainable=len(spec.trainable),
        )
    }
    for name in PLAIN:
        for width, stored in STORED.items():
            graph = graph_of(name, kernel, read, torch.float32)
            text = source(graph, stored, "flat", parameters=len(read), interpreted=False)
            files[f"_{name}_{width}.py"] = f"{text}\n\nTABLE = {tables(graph)!r}\n"
    return files
