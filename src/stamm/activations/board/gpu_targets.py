"""Emitted Triton and CUDA run on an NVIDIA GPU, where the machine has one."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from stamm.activations.board.targets import (
    CALL,
    Case,
    Outcome,
    TargetRun,
    columns,
    done,
    in_groups,
    triton_modules,
)

_FEW, _SIDE_BY_SIDE = 5, 14  # cases of a process, processes
_KERNEL = """
__global__ void kernel_{name}(long count, const float *given, float *results) {{
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i >= count) return;
  float into[{slopes}];
  results[i] = stamm_{function}({arguments});
  stamm_{function}_gradients(1, {arguments}, {pointers});
  for (int k = 0; k < {slopes}; ++k) results[(k + 1) * count + i] = into[k];
}}
extern "C" void run_{name}(long count, const float *given, float *results) {{
  float *from, *to;
  cudaMalloc(&from, {inputs} * count * sizeof(float));
  cudaMalloc(&to, {columns} * count * sizeof(float));
  cudaMemcpy(from, given, {inputs} * count * sizeof(float), cudaMemcpyHostToDevice);
  kernel_{name}<<<(count + 255) / 256, 256>>>(count, from, to);
  cudaMemcpy(results, to, {columns} * count * sizeof(float), cudaMemcpyDeviceToHost);
  cudaError_t error = cudaGetLastError();  // of any call above
  if (error != cudaSuccess) {{
    fprintf(stderr, "%s\\n", cudaGetErrorString(error));
    exit(1);
  }}
  cudaFree(from);
  cudaFree(to);
}}
"""


def gpu_runs() -> tuple[TargetRun, ...]:
    """Runs in place of those of the same names on the CPU; () without a GPU of NVIDIA."""
    if torch.version.cuda is None or not torch.cuda.is_available():
        return ()
    device = torch.cuda.get_device_name()
    runs = [
        TargetRun(
            "triton",
            lambda: f"triton {importlib.metadata.version('triton')}",
            f"float32, compiled, on {device}",
            side_by_side(_triton),
            has_short=True,
        )
    ]
    if shutil.which("nvcc"):
        runs.append(
            TargetRun(
                "cuda",
                lambda: f"nvcc of CUDA {torch.version.cuda}",
                f"float32, nvcc -O2, which contracts a*b + c, on {device}",
                side_by_side(run_cuda),
                has_short=True,
            )
        )
    return tuple(runs)


def side_by_side(
    run: Callable[[Sequence[Case], Path], None],
) -> Callable[[Sequence[Case]], Iterator[Outcome]]:
    """A few cases in each process, several processes at once: compilation takes seconds."""
    in_turn = in_groups(run)

    def all_of(cases: Sequence[Case]) -> Iterator[Outcome]:
        few = [cases[first : first + _FEW] for first in range(0, len(cases), _FEW)]
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            for outcomes in pool.map(lambda group: list(in_turn(group)), few):
                yield from outcomes

    return all_of


def _triton(cases: Sequence[Case], folder: Path) -> None:
    names = triton_modules(cases, folder, "cuda")
    lines = [f"import sys; sys.path[:] = {['.', *sys.path]!r}", *(f"import {n}" for n in names)]
    done([sys.executable, "-c", "\n".join(lines)], folder, "Triton")


def run_cuda(cases: Sequence[Case], folder: Path) -> None:
    """Compile CUDA texts with nvcc and run them on the GPU: NAME.out for NAME.in."""
    text = "#include <cstdio>\n#include <cstdlib>\n"
    for case in cases:
        slopes, inputs = columns(case) - 1, len(case.given)
        arguments = [f"given[{k} * count + i]" for k in range(inputs)]
        text += case.text.decode().replace("#pragma once", "") + _KERNEL.format(
            name=case.name,
            function=case.device_name,
            slopes=slopes,
            inputs=inputs,
            columns=slopes + 1,
            arguments=", ".join([*arguments, *(f"{p!r}" for p in case.parameters)]),
            pointers=", ".join(f"into + {k}" for k in range(slopes)),
        )
    (folder / "all.cu").write_text(text)
    command = ["nvcc", "-O2", "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-w"]
    done([*command, "all.cu", "-o", "all.so"], folder, "nvcc")
    calls = json.dumps([[case.name, columns(case), len(case.given)] for case in cases])
    done([sys.executable, "-c", CALL, calls], folder, "CUDA")
