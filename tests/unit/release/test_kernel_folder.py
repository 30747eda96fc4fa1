"""The folder for the kernels hub: loaded by `kernels`, equal to our activation."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from kernels import LocalLayerRepository, Mode, get_local_kernel, kernelize, use_kernel_mapping
from kernels._rust import Digest, DigestAlgorithm, Metadata
from kernels.layer import replace_kernel_forward_from_hub
from torch import nn

from stamm.activations import catalog
from stamm.activations.module import build_activation
from stamm.base.errors import ConfigError, RunError
from stamm.release.kernel_folder import VARIANTS, write_kernel_folder
from tests.unit.activations.ahead_of_time import (
    OnNvidia,
    compiled_for_nvidia,
    ran_in_a_process_of_its_own,
)

CASES = Path(__file__).with_name("kernel_folder_cases.py")


def imported(folder: Path, name: str) -> ModuleType:
    """A package by its folder, as `kernels` imports a variant."""
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_kernels_loads_it_and_it_computes_the_activation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    spec = catalog.get("xielu")
    write_kernel_folder(spec, tmp_path / "xielu")
    kernel = get_local_kernel(tmp_path / "xielu", backend="cpu")
    ours = build_activation(spec)
    values = ours.effective()
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * 3
    theirs = x.clone().requires_grad_()
    shapes = [torch.tensor([values[n]], requires_grad=True) for n in ("alpha_p", "alpha_n")]
    found = kernel.xielu(theirs, *shapes)
    mine = x.clone().requires_grad_()
    expected = ours(mine)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    found.sum().backward()
    expected.sum().backward()
    assert theirs.grad is not None and mine.grad is not None
    torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-6, atol=1e-6)
    for name, shape in zip(("alpha_p", "alpha_n"), shapes, strict=True):
        stored = dict(ours.named_parameters())[name]
        slope = torch.sigmoid(stored.detach())  # of softplus
        assert shape.grad is not None and stored.grad is not None
        torch.testing.assert_close(shape.grad * slope, stored.grad, rtol=1e-5, atol=1e-4)
    half = kernel.xielu(x.bfloat16(), *(shape.detach() for shape in shapes))
    assert half.dtype == torch.bfloat16
    layer = kernel.layers.XIELU()
    for name, stored in ours.named_parameters():
        layer.register_parameter(name, stored)
    torch.testing.assert_close(layer(x), expected, rtol=1e-6, atol=1e-6)


def test_a_folder_with_files_and_unfit_activations_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(RunError, match="exists"):
        write_kernel_folder(catalog.get("xielu"), tmp_path)
    for name in ("swiglu", "relu2"):
        with pytest.raises(ConfigError, match=r"two inputs|no parameters"):
            write_kernel_folder(catalog.get(name), tmp_path / name)


def test_the_layout_is_that_of_the_kernels_hub(tmp_path: Path) -> None:
    spec = catalog.get("xielu")
    write_kernel_folder(spec, tmp_path / "xielu")
    names = set()
    for variant, backend in VARIANTS.items():
        folder = tmp_path / "xielu" / "build" / variant
        metadata = Metadata.read_from_file(folder / "metadata.json")
        assert metadata.id.isidentifier()
        names.add(metadata.id)
        assert metadata.name.python_name == "xielu"
        assert json.loads((folder / "metadata.json").read_text())["backend"] == {"type": backend}
        assert metadata.digest is not None
        metadata.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, folder))
        older = imported(folder / "xielu", f"older_{backend}")
        assert older.__all__ == ["xielu", "implementation", "layers"]
        x = torch.linspace(-3, 3, 50)
        assert (
            older.implementation(x) == "torch"
        )  # no GPU holds it, and it is computed all the same
        ours = build_activation(spec)
        found = older.xielu(x, *(ours.effective()[name] for name in ("alpha_p", "alpha_n")))
        torch.testing.assert_close(found, ours(x), rtol=1e-6, atol=1e-6)
    assert len(names) == 2  # both variants can be imported into one process


def test_the_files_need_torch_and_triton_alone(tmp_path: Path) -> None:
    allowed = {"__future__", "functools", "importlib", "pathlib", "sys", "torch", "warnings"}
    for path in write_kernel_folder(catalog.get("xielu"), tmp_path / "xielu"):
        found = set()
        for node in ast.walk(ast.parse(path.read_text())) if path.suffix == ".py" else ():
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add((node.module or "").partition(".")[0])
        fused = path.parent.name == "torch-cuda" and path.name.endswith(("_16.py", "_32.py"))
        assert found <= (allowed | {"triton"} if fused else allowed), path


class Before(nn.Module):
    """An activation of a model before `kernelize`, with the parameters that checkpoints hold."""

    def __init__(self) -> None:
        super().__init__()
        for name, stored in build_activation(catalog.get("xielu")).named_parameters():
            self.register_parameter(name, nn.Parameter(stored.detach() + 0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("replaced by kernelize")


def test_kernelize_replaces_a_layer(tmp_path: Path) -> None:
    write_kernel_folder(catalog.get("xielu"), tmp_path / "xielu")
    replace_kernel_forward_from_hub(Before, "XIELU")
    model = nn.Sequential(Before())
    layer = LocalLayerRepository(repo_path=tmp_path / "xielu", layer_name="XIELU")
    with use_kernel_mapping({"XIELU": {"cpu": layer}}):
        model = kernelize(model, mode=Mode.TRAINING, device="cpu", use_fallback=False)
    ours = build_activation(catalog.get("xielu"))
    ours.load_state_dict(
        {name: p.detach() for name, p in model[0].named_parameters()}, strict=False
    )
    x = torch.linspace(-4, 4, 101)
    torch.testing.assert_close(model(x), ours(x), rtol=1e-6, atol=1e-6)
    model(x).sum().backward()
    ours(x).sum().backward()
    for found, mine in zip(model[0].parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(found.grad, mine.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_fused_kernels_in_a_process_of_their_own() -> None:
    ran_in_a_process_of_its_own(CASES, "test")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_fused_kernels_compile_for_a_gpu_without_spilling(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_kernel_folder(catalog.get("xielu"), tmp_path / "xielu")
    kernel = imported(tmp_path / "xielu" / "build" / "torch-cuda", "compiled_xielu")
    found: list[OnNvidia] = []

    def launch(run: Any, programs: int, arguments: list[Any], sizes: dict[str, Any]) -> None:
        found.append(compiled_for_nvidia(run, arguments, sizes))

    monkeypatch.setattr(kernel._fused, "_launch", launch)
    x = torch.empty(8 * 4096, dtype=dtype)
    parameters = tuple(torch.tensor([v]) for v in (0.9, 0.7, 0.5))
    kernel._fused.forward(x, parameters)
    kernel._fused.backward(x, x, parameters)
    forward, backward, _ = found
    assert all(each.spilled == 0 for each in found)
    for each, read in ((forward, 1), (backward, 2)):
        # 16 bytes are read and written at a time; NaN comes through every minimum and maximum.
        assert each.count("STG.E.128") >= 4096 // 256 * x.element_size() // 16
        assert each.count("LDG.E.128") >= read * each.count("STG.E.128")
        assert each.count("FMNMX") == each.count("FMNMX.NAN") > 0
