"""Passes on NEON's vectors: compiled for another machine, run by an emulator, held to float64."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stamm.activations import catalog
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fused import build
from stamm.activations.fused.cpp import source
from stamm.activations.fused.passes import GATED, PLAIN, graph_of
from stamm.activations.spec import Gated

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
MISSING = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING),
    reason=f"not on the PATH: {', '.join(MISSING)} (Debian: g++-{COMPILER[:-4]}, qemu-user)",
)

ROWS, COLUMNS = 3, 1000
STORED = {
    torch.float32: (torch.float64, 2.0**-24),
    torch.float16: (torch.float32, 2.0**-11),
    torch.bfloat16: (torch.float32, 2.0**-8),
}
# One pass: inputs from standard input, outputs and then the sums to standard output.
MAIN = """
#include <cstdio>
#include <vector>
int main() {
  const int64_t rows = %(rows)d, columns = %(columns)d, bytes = rows * columns * %(bytes)d;
  std::vector<std::vector<char>> held(%(inputs)d + %(outputs)d, std::vector<char>(bytes));
  std::vector<Strided> t;
  for (auto& each : held) t.push_back({each.data(), columns, 1});
  for (int k = 0; k < %(inputs)d; ++k)
    if (std::fread(held[k].data(), 1, bytes, stdin) != bytes) return 1;
  const double parameters[] = {%(parameters)s};
  double sums[%(sums)d + 1], partial[64];
  %(name)s(t.data(), t.data() + %(inputs)d, rows, columns, parameters, sums, partial, 1);
  for (int k = 0; k < %(outputs)d; ++k)
    std::fwrite(held[%(inputs)d + k].data(), 1, bytes, stdout);
  std::fwrite(sums, sizeof(double), %(sums)d, stdout);
}
"""


def _bytes(x: Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("step", [0, 1], ids=["forward", "backward"])
@pytest.mark.parametrize("entry", ["xielu", "gelu", "snake", "swiglu"])
def test_passes_are_those_of_the_formula(
    entry: str, step: int, stored: torch.dtype, tmp_path: Path
) -> None:
    spec = catalog.get(entry)
    kernel, (computing, error) = kernel_of(spec), STORED[stored]
    fixed = tuple(None if p.trainable else p.initial for p in spec.parameters)
    values = [p.initial for p in spec.parameters if p.trainable]
    name = (GATED if isinstance(spec.arity, Gated) else PLAIN)[step]
    graph = graph_of(name, kernel, fixed, computing)
    text = source({name: graph}, stored, by_column=False) + MAIN % {
        "rows": ROWS, "columns": COLUMNS, "bytes": stored.itemsize, "name": name,
        "inputs": graph.inputs, "outputs": len(graph.outputs), "sums": len(graph.sums),
        "parameters": ", ".join(map(repr, [*values, 0.0])),
    }  # fmt: skip
    (tmp_path / "pass.cpp").write_text(text)
    subprocess.run(
        [
            COMPILER, "-std=c++20", "-O3", "-fno-math-errno", "-fno-trapping-math", "-w", "-static",
            "-fopenmp", f"-DSTAMM_CHUNK={build.CHUNK}", f"-DSTAMM_ROWS={build.ROWS}",
            f"-I{Path(build.__file__).parent}", str(tmp_path / "pass.cpp"), "-o", str(tmp_path / "pass"),
        ],
        check=True,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    inputs = [
        (3 * torch.randn(ROWS, COLUMNS, generator=generator)).to(stored)
        for _ in range(graph.inputs)
    ]
    run = subprocess.run(
        [EMULATOR, str(tmp_path / "pass")],
        input=b"".join(map(_bytes, inputs)),
        capture_output=True,
        check=True,
    )
    size = inputs[0].numel() * stored.itemsize
    found = [
        torch.frombuffer(bytearray(run.stdout[k * size : (k + 1) * size]), dtype=stored)
        for k in range(len(graph.outputs))
    ]
    rest = bytearray(run.stdout[len(found) * size :])

    wide = [x.double().flatten() for x in inputs]
    numbers = iter(values)
    given = tuple(next(numbers) if p is None else p for p in fixed)
    x = wide[1] if step else wide[0]
    value, (slope, *by_parameter) = kernel.value(x, given), kernel.slopes(x, given)
    if name == "gated_backward":
        wanted = [wide[0] * wide[2] * slope, wide[0] * value]
    else:
        wanted = [wide[0] * slope if step else value * (1 if len(wide) == 1 else wide[1])]
    least = 1e-12 if computing == torch.float64 else 2e-6  # where a formula cancels
    for ours, exact in zip(found, wanted, strict=True):
        assert ((ours.double() - exact).abs() <= 1.001 * error * exact.abs() + least).all()
    if graph.sums:
        sums = torch.frombuffer(rest, dtype=torch.float64)
        exact_sums = torch.stack([(wide[0] * each).sum() for each in by_parameter])
        assert torch.allclose(sums, exact_sums, rtol=1e-5, atol=1e-4)
