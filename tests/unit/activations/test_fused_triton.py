"""Triton kernels: every entry in the interpreter (or on a GPU), and compiled for a GPU without one."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.activations.catalog import get
from stamm.activations.fused import gpu
from stamm.activations.fused.passes import PassName, graph_of
from stamm.activations.fused.triton_source import source
from stamm.activations.kernels import kernel_of
from stamm.activations.spec import Spec

CASES = Path(__file__).with_name("triton_cases.py")
BITS = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64"}
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


@needs_triton
@pytest.mark.parametrize("part", ["bfloat16", "float16 and not bfloat16", "float32", "layout"])
def test_kernels_in_a_process_of_their_own(part: str) -> None:
    """On a GPU where there is one, else in the interpreter; see triton_cases.py."""
    interpret = "0" if gpu.unavailable() is None else "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(
        [*command, "-k", part],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": interpret, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "skipped" not in done.stdout


@dataclass
class Compiled:
    """What the GPU's assembler made of a kernel: registers, bytes outside them, instructions."""

    registers: int
    spilled: int
    assembly: str


def compiled(kernel: Any, arguments: list[Any], sizes: dict[str, Any]) -> Compiled:
    """The kernel as it would be launched with these arguments on an H100 or H200."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for place, name in enumerate(kernel.arg_names):
        value = sizes[name] if name in sizes else arguments[place]
        if name in sizes or (isinstance(value, int) and value == 1):
            signature[name], constants[(place,)] = "constexpr", value
            continue
        tensor = isinstance(value, torch.Tensor)
        signature[name] = BITS[value.dtype] if tensor else "i32"
        if tensor or value % 16 == 0:
            attributes[(place,)] = [["tt.divisibility", 16]]
    made = triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", 90, 32),
        options={name: value for name, value in sizes.items() if name not in kernel.arg_names},
    )
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
    registers, stack, local = (
        int(re.search(rf"{name}:(\d+)", usage)[1])  # type: ignore[index]
        for name in ("REG", "STACK", "LOCAL")
    )
    return Compiled(registers, stack + local, assembly)


def instructions(of: Compiled, name: str) -> int:
    return len(re.findall(rf"\s{name}[\s.]", of.assembly))


def fixed_of(spec: Spec) -> tuple[float | None, ...]:
    return tuple(None if p.trainable else p.initial for p in spec.parameters)


@needs_triton
@pytest.mark.parametrize(
    ("entry", "name", "inputs", "columns", "programs", "length"),
    [
        ("xielu", "forward", 1, False, 6, 28),
        ("xielu", "backward", 2, False, 5, 44),
        ("xielu", "backward", 2, True, 2, 92),
        ("swiglu", "gated_backward", 3, False, 2, 56),
    ],
)
def test_kernels_compile_for_a_gpu_without_spilling(
    entry: str,
    name: PassName,
    inputs: int,
    columns: bool,
    programs: int,
    length: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """programs: how many fit into a multiprocessor, whose 65536 registers are given out by eights.
    length: instructions for each element, those outside a loop included.

    At 90 % of its bandwidth an H200 can start 31 of them while 4 bytes pass, and 47 for 6 bytes.
    """
    found: list[Compiled] = []

    def launch(kernel: Any, programs: int, arguments: list[Any], sizes: dict[str, Any]) -> None:
        found.append(compiled(kernel, arguments, sizes))

    monkeypatch.setattr(gpu, "launch", launch)
    spec = get(entry)
    shape = (256, 512)
    tensors = [torch.empty(shape, dtype=torch.bfloat16) for _ in range(inputs)]
    outputs = [torch.empty(shape, dtype=torch.bfloat16) for _ in range(max(1, inputs - 1))]
    given = [torch.full((512,) if columns else (), p.initial) for p in spec.trainable]
    gpu.run(name, kernel_of(spec), fixed_of(spec), torch.float32, tensors, outputs, given)
    assert len(found) == 1 + bool(given and "backward" in name)
    run = found[0]
    assert all(each.spilled == 0 for each in found)
    assert 65536 // (256 * 8 * -(-run.registers // 8)) >= programs
    elements = (gpu.TILE if columns else gpu.BLOCK) // 256
    assert len(re.findall(r";$", run.assembly, re.M)) <= length * elements
    # Eight elements are one read of 16 bytes for each tensor, and one such write.
    assert instructions(run, "LDG.E.128") >= elements // 8 * inputs
    assert instructions(run, "STG.E.128") == elements // 8 * len(outputs)
    # NaN comes through every minimum and maximum.
    assert instructions(run, "FMNMX") == instructions(run, "FMNMX.NAN")
    assert (instructions(run, "FMNMX") > 0) == (entry == "xielu")
    assert not any(
        instructions(each, atomic) for each in found for atomic in ("RED", "ATOM", "ATOMG")
    )


@needs_triton
def test_float32_is_computed_in_float64_and_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Compiled] = []
    monkeypatch.setattr(gpu, "launch", lambda k, _, a, s: found.append(compiled(k, a, s)))
    spec, x = get("silu"), torch.empty(8192)
    for computing in (torch.float64, torch.float32):
        gpu.run("forward", kernel_of(spec), (), computing, [x], [torch.empty_like(x)], [])
    wide, single = found
    assert instructions(wide, "DFMA") > 0
    assert instructions(single, "DFMA") == 0
    assert wide.spilled == single.spilled == 0


def text_of(interpreted: bool, stored: torch.dtype = torch.bfloat16) -> str:
    spec = get("xielu")
    graph = graph_of("backward", kernel_of(spec), fixed_of(spec), torch.float32)
    return source(graph, stored, "flat", parameters=2, interpreted=interpreted)


def test_only_source_for_the_interpreter_knows_its_functions() -> None:
    device, interpreted = text_of(False), text_of(True)
    assert "stamm" not in device.split('"""')[2]
    assert "from triton.language.extra import libdevice as functions" in device
    assert "import stamm.activations.fused.interpreted as functions" in interpreted
    assert "functions.exp(" in text_of(False, torch.float32)
    assert "functions.fast_expf(" in device


def test_a_changed_file_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    text = "answer = 1\n"
    path = Path(gpu.imported(text).__file__ or "")
    assert path.is_relative_to(tmp_path)
    path.write_text("answer = 2\n")
    assert gpu.imported(text).answer == 1
    assert path.read_text() == text


def test_nothing_is_loaded_and_nothing_served_without_a_gpu() -> None:
    code = (
        "import sys, torch\n"
        "import stamm.activations\n"
        "from stamm.activations.fused import gpu\n"
        "print(gpu.serves(torch.zeros(3)), gpu.unavailable() is None, 'triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    serves, available, loaded = done.stdout.split()
    assert (serves, loaded) == ("False", "False")
    assert (available == "True") == (gpu.unavailable() is None)
