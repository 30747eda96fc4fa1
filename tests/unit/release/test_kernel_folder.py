"""The folder for the kernels hub: loaded by `kernels`, equal to our activation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels import get_local_kernel

from stamm.activations import catalog
from stamm.activations.module import build_activation
from stamm.base.errors import ConfigError, RunError
from stamm.release.kernel_folder import write_kernel_folder


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
