"""Code that inductor compiled for one width of vectors is not run with another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stamm.engine.compile import missing_to_compile

CODE = """
import sys
import torch
from torch._inductor.cpu_vec_isa import VecISA
if "busy" in sys.argv:
    VecISA._probe_load = lambda self, path: self._bit_width < 512  # over a minute: False
from stamm.engine.compile import separate_inductor_cache

separate_inductor_cache()
x = torch.linspace(-4, 4, 65536).to(torch.bfloat16).reshape(64, 1024)
y = torch.compile(lambda x: torch.nn.functional.silu(x) * x, fullgraph=True)(x)
wide = x.double()
exact = wide * wide * torch.sigmoid(wide)
print(torch.backends.cpu.get_cpu_capability(), float((y - exact).norm() / exact.norm()))
"""


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="the processor has no AVX-512"
)
@pytest.mark.skipif(bool(missing_to_compile()), reason="torch.compile needs a C++ compiler")
def test_a_cache_that_was_filled_with_other_vectors_gives_right_numbers(tmp_path: Path) -> None:
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    for more, word, capability in (
        ({}, "", "AVX512"),
        ({"ATEN_CPU_CAPABILITY": "avx2"}, "", "AVX2"),
        ({}, "busy", "AVX512"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", CODE, word],
            env=variables | more,
            capture_output=True,
            text=True,
            check=True,
        )
        found, error = done.stdout.split()
        assert found == capability
        assert float(error) < 0.01
