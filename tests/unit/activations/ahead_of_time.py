"""Kernels for GPUs that are not here: compiled as they would be launched, and read, never run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stamm.activations.fused import gpu

BITS = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int64: "i64",
}


def ran_in_a_process_of_its_own(cases: Path, part: str) -> None:
    """The tests of a file pass: on a GPU where there is one, else in the interpreter."""
    interpret = "0" if gpu.unavailable_reason() is None else "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)]
    done = subprocess.run(
        [*command, "-k", part],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": interpret, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "skipped" not in done.stdout


def compiled(kernel: Any, arguments: list[Any], sizes: dict[str, Any], target: Any) -> Any:
    """What Triton makes of a kernel that is launched with these arguments on the target."""
    import triton
    from triton.compiler import ASTSource

    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for place, name in enumerate(kernel.arg_names):
        value = sizes[name] if name in sizes else arguments[place]
        if name in sizes or (isinstance(value, int) and value == 1):
            signature[name], constants[(place,)] = "constexpr", value
        else:
            tensor = isinstance(value, torch.Tensor)
            number = "fp32" if isinstance(value, float) else "i32"
            signature[name] = f"*{BITS[value.dtype]}" if tensor else number
            if tensor or (number == "i32" and value % 16 == 0):
                attributes[(place,)] = [["tt.divisibility", 16]]
    return triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=target,
        options={name: value for name, value in sizes.items() if name not in kernel.arg_names},
    )


@dataclass(frozen=True, kw_only=True)
class OnNvidia:
    """What the assembler made of a kernel: registers, spilled bytes, assembly."""

    registers: int
    spilled: int
    assembly: str

    def count(self, instruction: str) -> int:
        """How often an instruction stands there, in any of its forms."""
        return len(re.findall(rf"\s{instruction}[\s.]", self.assembly))


def compiled_for_nvidia(kernel: Any, arguments: list[Any], sizes: dict[str, Any]) -> OnNvidia:
    """The kernel compiled for an H100 or H200 (compute capability 9.0)."""
    import triton
    from triton.backends.compiler import GPUTarget

    made = compiled(kernel, arguments, sizes, GPUTarget("cuda", 90, 32))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        tools = triton.knobs.nvidia
        usage, assembly = (
            subprocess.run([*command, file.name], capture_output=True, text=True, check=True).stdout
            for command in (
                [tools.cuobjdump.path, "--dump-resource-usage"],
                [tools.nvdisasm.path, "-c"],
            )
        )
    found = {name: int(n) for name, n in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return OnNvidia(
        registers=found["REG"],
        spilled=found["STACK"] + found["LOCAL"],
        assembly=assembly,
    )


def compiled_for_amd(
    kernel: Any, arguments: list[Any], sizes: dict[str, Any], architecture: str
) -> str:
    """The assembly of a kernel for one of AMD's GPUs, which was also linked into an object."""
    from triton.backends.compiler import GPUTarget

    made = compiled(kernel, arguments, sizes, GPUTarget("hip", architecture, 64))
    assert made.asm["hsaco"].startswith(b"\x7fELF")
    text: str = made.asm["amdgcn"]
    return text
