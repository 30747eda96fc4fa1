"""Triton kernels: every entry in the interpreter (or on a GPU), and compiled for a GPU without one."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stamm.activations.catalog import ENTRIES, get
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fused import gpu
from stamm.activations.fused.passes import PassName, graph_of
from stamm.activations.fused.triton_source import source
from stamm.activations.spec import Gated, Spec
from tests.unit.activations.ahead_of_time import (
    OnNvidia,
    compiled_for_amd,
    compiled_for_nvidia,
    ran_in_a_process_of_its_own,
)

CASES = Path(__file__).with_name("triton_cases.py")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(
    "part",
    [
        "float32 and not layout and not sweep",
        "not float32 and not layout and not sweep",
        "layout",
        pytest.param("sweep", marks=pytest.mark.sweep),
    ],
)
def test_kernels_in_a_process_of_their_own(part: str) -> None:
    """On a GPU where there is one, else in the interpreter; see triton_cases.py."""
    ran_in_a_process_of_its_own(CASES, part)


def fixed_of(spec: Spec) -> tuple[float | None, ...]:
    return tuple(None if p.trainable else p.initial for p in spec.parameters)


@pytest.mark.slow
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
    found: list[OnNvidia] = []

    def launch(kernel: Any, programs: int, arguments: list[Any], sizes: dict[str, Any]) -> None:
        found.append(compiled_for_nvidia(kernel, arguments, sizes))

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
    assert run.count("LDG.E.128") >= elements // 8 * inputs
    assert run.count("STG.E.128") == elements // 8 * len(outputs)
    # NaN comes through every minimum and maximum.
    assert run.count("FMNMX") == run.count("FMNMX.NAN")
    assert (run.count("FMNMX") > 0) == (entry == "xielu")
    assert not any(each.count(atomic) for each in found for atomic in ("RED", "ATOM", "ATOMG"))


@pytest.mark.slow
@needs_triton
def test_float32_is_computed_in_float64_and_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[OnNvidia] = []
    monkeypatch.setattr(
        gpu, "launch", lambda k, _, a, s: found.append(compiled_for_nvidia(k, a, s))
    )
    spec, x = get("silu"), torch.empty(8192)
    for computing in (torch.float64, torch.float32):
        gpu.run("forward", kernel_of(spec), (), computing, [x], [torch.empty_like(x)], [])
    wide, single = found
    assert wide.count("DFMA") > 0
    assert single.count("DFMA") == 0
    assert wide.spilled == single.spilled == 0


def covering(dtype: torch.dtype) -> list[Spec]:
    """Entries whose backward passes together hold every operation of the catalogue's passes."""
    holds = {}
    for spec in ENTRIES:
        kernel, fixed = kernel_of(spec), fixed_of(spec)
        graphs = [graph_of(name, kernel, fixed, dtype) for name in ("gated_backward", "backward")]
        chosen = graphs[0 if isinstance(spec.arity, Gated) else 1]
        holds[spec.name] = {chosen.nodes[place].name for place in chosen.needed()}
    missing, found = set().union(*holds.values()), []
    while missing:
        name = max(holds, key=lambda entry: len(holds[entry] & missing))
        missing -= holds[name]
        found.append(get(name))
    return found


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("architecture", gpu._ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_operation_compiles_for_amd_without_spilling(
    architecture: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To an object, with every function found in the device's library. What it gives is not known."""
    monkeypatch.setattr(torch.version, "hip", "6.4")
    made: list[str] = []

    def launch(kernel: Any, programs: int, arguments: list[Any], sizes: dict[str, Any]) -> None:
        made.append(compiled_for_amd(kernel, arguments, sizes, architecture))

    monkeypatch.setattr(gpu, "launch", launch)
    computing = torch.float64 if dtype == torch.float32 else torch.float32
    entries = covering(computing)
    assert len(entries) > 3
    for spec in entries:
        gated = isinstance(spec.arity, Gated)
        name: PassName = "gated_backward" if gated else "backward"
        read = [torch.empty(64, 512, dtype=dtype) for _ in range(2 + gated)]
        given = [torch.full((), p.initial) for p in spec.trainable]
        gpu.run(name, kernel_of(spec), fixed_of(spec), computing, read, read[1:], given)
    assert len(made) >= len(entries)
    for text in made:  # nothing goes to memory that the program does not name
        assert re.search(r"\.private_segment_fixed_size: 0\n", text)
        assert re.search(r"\.vgpr_spill_count: 0\n", text)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gfx942:sramecc+:xnack-", None),
        ("gfx90a", None),
        (
            "gfx1100",
            "the GPU is AMD's gfx1100, and kernels were tried with a compiler for gfx90a, gfx942 only",
        ),
    ],
)
def test_amds_gpus_are_served_where_kernels_were_compiled(
    name: str, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda _: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(gcnArchName=name)
    )
    assert gpu.caveat() is None
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert gpu._unavailable_reason.__wrapped__() == told
    assert "never run" in (gpu.caveat() or "")
    assert gpu._digits(torch.float32) == {}  # an option that AMD's compiler refuses


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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
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
        "print(gpu.is_supported(torch.zeros(3)), gpu.unavailable_reason() is None, 'triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    serves, available, loaded = done.stdout.split()
    assert (serves, loaded) == ("False", "False")
    assert (available == "True") == (gpu.unavailable_reason() is None)
