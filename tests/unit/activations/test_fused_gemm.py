"""Products with an activation in their last step: interpreted, and compiled for GPUs without one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.activations.catalog import get
from stamm.activations.fused import gpu
from stamm.activations.fused.gemm import block, choice, product
from stamm.activations.fused.gemm.choice import Shape, Step, Tile
from stamm.activations.fused.gemm.source import source
from stamm.activations.fused.passes import graph_of
from stamm.activations.kernel_lookup import kernel_of
from stamm.models import ffn
from stamm.models.config import PlainFFN, SavePost, SavePre
from stamm.models.ffn import PlainFeedForward
from tests.unit.activations.ahead_of_time import compiled_for_nvidia, ran_in_a_process_of_its_own

CASES = Path(__file__).with_name("gemm_cases.py")
ROOM = {90: 227, 80: 163}  # KiB of shared memory that a program can have
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


@needs_triton
@pytest.mark.parametrize("part", ["test_products", "not test_products"])
def test_kernels_in_a_process_of_their_own(part: str) -> None:
    """On a GPU where there is one, else in the interpreter; see gemm_cases.py."""
    ran_in_a_process_of_its_own(CASES, part)


def launched(name: str, step: Step, tile: Tile) -> list[tuple[Any, list[Any], dict[str, Any]]]:
    """What a product of large matrices would start; called with `gpu.launch` replaced."""
    spec = get(name)
    kernel, fixed = kernel_of(spec), product.fixed_values(spec)
    left, pre = (torch.empty(512, n, dtype=torch.bfloat16) for n in (256, 1024))
    up = torch.empty(1024, 256, dtype=torch.bfloat16)
    given = [torch.full((1,), p.initial) for p in spec.trainable]
    found: list[tuple[Any, list[Any], dict[str, Any]]] = []
    launch = gpu.launch
    gpu.launch = lambda kernel, programs, *rest: found.append((kernel, *rest))
    try:
        if step == "forward":
            product.forward(kernel, fixed, left, up, given, tile=tile)
        else:
            product.backward(kernel, fixed, left, up.T, pre, given, tile=tile)
    finally:
        gpu.launch = launch
    return found


@needs_triton
@pytest.mark.parametrize("step", ["forward", "backward"])
@pytest.mark.parametrize(
    ("capability", "tile"),
    [(90, choice._DESCRIBED_TILES[1]), (80, choice._POINTED_TILES[0])],
    ids=["H100", "A100"],
)
def test_kernels_compile_for_a_gpu_without_spilling(
    capability: int, tile: Tile, step: Step
) -> None:
    (run, *added) = launched("xielu", step, tile)
    assert len(added) == (1 if step == "backward" else 0)
    made = compiled_for_nvidia(*run, capability)
    assert made.spilled == 0
    assert made.shared <= ROOM[capability] * 1024
    if capability == 90:
        # The tensor cores take their operands from shared memory, and tiles move as tiles:
        # two for each stage; what is read and written of the result once for each part.
        assert made.count("HGMMA") > 0
        assert made.count("HMMA") == 0
        read, written = (tile.parts, 1) if step == "backward" else (0, 2)
        assert made.count("UTMALDG") >= 2 + read
        assert made.count("UTMASTG") == tile.parts * written * 2  # one for each 64 columns
    else:
        assert made.count("HMMA") > 0
        assert made.count("LDGSTS") > 0
    assert not any(made.count(atomic) for atomic in ("RED", "ATOM", "ATOMG"))


@needs_triton
def test_every_known_tile_divides_into_its_parts() -> None:
    for described in (True, False):
        shape = Shape(rows=16384, columns=21504, depth=4096)
        known = choice.candidates(shape, descriptors=described)
        assert len(known) > 3
        assert all(tile.descriptors is described for tile in known)
        assert all(tile.wide % (64 * tile.parts) == 0 for tile in known)
        few = choice.candidates(Shape(rows=17, columns=64, depth=64), descriptors=described)
        assert few == known[-1:]


def test_the_default_tile_is_decided_by_the_shape() -> None:
    def chosen(rows: int, columns: int) -> Tile:
        shape = Shape(rows=rows, columns=columns, depth=4096)
        return choice.tile_for("forward", shape, torch.bfloat16, torch.device("cpu"), "unknown")

    assert chosen(16384, 21504) == choice._POINTED_TILES[0]
    assert chosen(512, 2048) == choice._POINTED_TILES[-1]
    assert chosen(1, 1) == choice._POINTED_TILES[-1]


def test_only_source_for_the_interpreter_knows_its_functions() -> None:
    spec = get("xielu")
    graph = graph_of("backward", kernel_of(spec), product.fixed_values(spec), torch.float32)
    for interpreted in (False, True):
        text = source(
            graph,
            torch.bfloat16,
            parameters=2,
            by_column=False,
            descriptors=True,
            parts=4,
            written="both",
            interpreted=interpreted,
        )
        assert ("stamm" in text.split('"""')[2]) is interpreted


@pytest.mark.parametrize("memory", [SavePost(), SavePre()])
def test_without_a_measurement_nothing_changes(
    memory: SavePost | SavePre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    choice._found.cache_clear()
    monkeypatch.setattr(gpu, "serves", lambda x: True)
    used: list[bool] = []
    monkeypatch.setattr(ffn, "fused_block", lambda x, *_, keep_post: used.append(keep_post) or x)
    module = PlainFeedForward(64, PlainFFN(width=1024, memory=memory)).bfloat16()
    x = torch.randn(512, 64).bfloat16()
    expected = module.down_proj(module.act_fn(module.up_proj(x)))
    assert torch.equal(module(x), expected)
    assert used == []
    monkeypatch.setattr(block, "measured_faster", lambda *_: True)
    assert module(x) is x
    assert used == [isinstance(memory, SavePost)]


def test_triton_is_loaded_only_to_launch() -> None:
    code = (
        "import sys, torch\n"
        "import stamm.activations.fused.gemm.block, stamm.activations.fused.gemm.measure\n"
        "from stamm.models.ffn import PlainFeedForward\n"
        "from stamm.models.config import PlainFFN\n"
        "PlainFeedForward(8, PlainFFN(width=16))(torch.zeros(2, 8))\n"
        "print('triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
