"""A little of everything that our kernels do, for a tool that watches each access to memory."""

from __future__ import annotations

import sys

import torch

from stamm.activations.fused import cpu, gpu
from stamm.activations.module import build_activation


def main() -> None:
    """Forward and backward: contiguous, with steps, one shape for each neuron, gated, float32."""
    device = torch.device(sys.argv[1])
    made = 0
    for name, neurons, dtype in (
        ("xielu", None, torch.bfloat16),
        ("xielu", 1031, torch.bfloat16),
        ("xielu", None, torch.float32),
        ("xatglu", None, torch.float16),
    ):
        module = build_activation(name, neurons=neurons).to(device)
        gated = hasattr(module, "of_fused")
        for step in (1, 2):
            wide = [
                torch.linspace(-9, 9, 33 * 1031 * step, device=device).to(dtype).view(33, -1)
                for _ in range(2 + gated)
            ]
            weight, *inputs = (t[:, ::step] for t in wide)
            leaves = [t.detach().requires_grad_() for t in inputs]
            assert (cpu if device.type == "cpu" else gpu).is_supported(leaves[0])
            result = module(*leaves)
            found = torch.autograd.grad(result, [*leaves, *module.parameters()], weight)
            made += sum(bool(torch.isfinite(t).all()) for t in found)
    print("finite gradients:", made)


if __name__ == "__main__":
    main()
