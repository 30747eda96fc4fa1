"""The module without stamm gives the numbers of stamm's own, in a process that cannot import stamm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stamm.activations import build_activation, catalog
from stamm.activations.codegen.kernel_lookup import kernel_text
from stamm.models.torch_module import torch_source

PROGRAM = """
import sys
sys.modules["stamm"] = None  # `import stamm` fails
import torch
sys.path.insert(0, sys.argv[1])
import module_torch
torch.manual_seed(0)
found = {}
given = torch.load(sys.argv[1] + "/given.pt")
activation = module_torch.Activation()
activation.load_state_dict(given["state"])
for dtype in (torch.float32, torch.bfloat16):
    inputs = [x.detach().to(dtype, copy=True).requires_grad_() for x in given["inputs"]]
    y = activation(*inputs)
    y.backward(given["weight"].to(dtype))
    found[str(dtype)] = [y.detach(), *(x.grad for x in inputs)]
    found[str(dtype) + " parameters"] = [p.grad.clone() for p in activation.parameters()]
    activation.zero_grad()
assert not any(name.partition(".")[0] in ("stamm",) and sys.modules[name] for name in sys.modules)
torch.save(found, sys.argv[1] + "/found.pt")
"""


@pytest.mark.parametrize("name", ["xielu", "gelu", "softplus", "mish", "swiglu_oai", "drelu"])
def test_without_stamm_the_numbers_are_the_same(name: str, tmp_path: Path) -> None:
    spec = catalog.get(name)
    activation = build_activation(name)
    (tmp_path / "module_torch.py").write_text(torch_source(spec, kernel_text(spec)))
    count = 2 if hasattr(activation, "of_fused") else 1
    inputs = [8 * torch.randn(300) for _ in range(count)]
    weight = torch.randn(300)
    state = activation.state_dict()
    torch.save({"state": state, "inputs": inputs, "weight": weight}, tmp_path / "given.pt")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "found.pt")
    for dtype in (torch.float32, torch.bfloat16):
        own = [x.detach().to(dtype, copy=True).requires_grad_() for x in inputs]
        y = activation(*own)
        y.backward(weight.to(dtype))
        expected = [y.detach(), *(x.grad for x in own)]
        for one, other in zip(found[str(dtype)], expected, strict=True):
            assert one.dtype == dtype and other is not None
            assert torch.allclose(one.double(), other.double(), rtol=1.2 * torch.finfo(dtype).eps)
        sums = [p.grad for p in activation.parameters()]
        for one, other in zip(found[f"{dtype} parameters"], sums, strict=True):
            assert other is not None
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)
        activation.zero_grad()
