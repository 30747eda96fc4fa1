"""Which vector instructions a benchmark runs with: the machine's own, or AVX2 on a machine with more.

torch's kernels and the generated ones follow ATEN_CPU_CAPABILITY, matrix products MKL_ENABLE_INSTRUCTIONS
(MKL) and ONEDNN_MAX_CPU_ISA (oneDNN). All three are read when a process starts, so a benchmark is
started with them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

NATIVE, AVX2 = "native", "avx2"
VARIABLES = {
    NATIVE: {},
    AVX2: {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
}
_CACHES = Path(__file__).parents[1] / "build" / "inductor"
_PROBE = """
import torch
print(torch.backends.cpu.get_cpu_capability())
a = torch.randn(64, 64)
a @ a
"""


def environment_of(capability: str) -> dict[str, str]:
    """The environment in which a process has this capability.

    inductor gets a cache of its own: torch 2.13 finds code there that was compiled for other vectors,
    and computes something else with it (bfloat16 results were 71 % off).
    """
    cache = _CACHES / capability
    return {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), **VARIABLES[capability]}


def check(capability: str) -> str:
    """The capability that torch names in such a process, once MKL confirms it.

    Raises   SystemExit where AVX2 was asked for and torch or MKL uses something else
    """
    variables = {**environment_of(capability), "MKL_VERBOSE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], env=variables, capture_output=True, text=True, check=True
    )
    found = done.stdout.splitlines()
    named = next(line for line in found if line.isupper() or line.isalnum())
    if capability == AVX2:
        products = next((line for line in found if "MKL_VERBOSE oneMKL" in line), "")
        if named != "AVX2" or "AVX-512" in products:
            raise SystemExit(f"AVX2 was asked for, and torch uses {named}, MKL: {products[:160]}")
    return named


def processor_facts() -> dict[str, Any]:
    """The machine and the commit, with torch loaded, so that its capability is among them."""
    import torch  # noqa: F401

    from stamm.runs.manifest import environment

    return environment()
