"""stamm's modules on a device, as something to judge: inputs go there, results come back.

Inputs are padded until the fused kernels take them, and every run asks these and no eager code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stamm.activations.conformance.implementations import Bound, StammImplementation
from stamm.activations.fused.operation import SMALLEST
from stamm.activations.module import build_activation
from stamm.activations.spec import Gated, Spec


def padded(tensor: Tensor) -> Tensor:
    """One row, its last element repeated up to a multiple of what is large enough to be fused."""
    flat = tensor.reshape(1, -1)
    return torch.cat([flat, flat[:, -1:].expand(1, -flat.shape[1] % SMALLEST)], dim=1)


@dataclass(frozen=True)
class OnDevice:
    """The module of an entry: for slopes in parameters, with a shape of its own for each element."""

    device: torch.device
    name: str = "stamm on the device"

    def bind(self, spec: Spec, values: Mapping[str, float], dtype: torch.dtype) -> Bound:
        """With the values, and the rounding of stored numbers, of the module on a CPU."""
        own = StammImplementation().bind(spec, values, dtype)
        function = _function(self, spec)

        def call(given: Mapping[str, Tensor], *tensors: Tensor) -> Tensor:
            leaves = [given[name] for name in own.leaves]
            result: Tensor = function.apply(*tensors, *leaves)  # type: ignore[no-untyped-call]
            return result

        return Bound(call, own.values, own.leaves, holds="raw")

    def run(
        self, spec: Spec, weight: Tensor | None, inputs: Sequence[Tensor], leaves: Sequence[Tensor]
    ) -> list[Tensor]:
        """f of flat inputs; or, with the weight of a sum of them, its gradients."""
        size = inputs[0].numel()
        rows = [padded(t).to(self.device) for t in inputs]
        each = bool(leaves) and leaves[0].numel() > 1
        neurons = rows[0].shape[1] if each else None
        module = build_activation(spec, neurons=neurons).to(self.device)
        with torch.no_grad():
            for parameter, leaf in zip(module.parameters(), leaves, strict=True):
                parameter.copy_(padded(leaf)[0] if each else leaf)
        if weight is None:
            with torch.no_grad():
                return [module(*rows).cpu()[0, :size]]
        with torch.enable_grad():
            rows = [t.requires_grad_() for t in rows]
            into = torch.zeros_like(rows[0])
            into[0, :size] = weight.reshape(-1)
            found = torch.autograd.grad(module(*rows), [*rows, *module.parameters()], into)
        gradients, sums = found[: len(rows)], found[len(rows) :]
        ends = [s.cpu()[:size] if each else s.cpu() for s in sums]
        return [*(g.cpu()[0, :size] for g in gradients), *ends]


def _function(judged: OnDevice, spec: Spec) -> type[torch.autograd.Function]:
    count = 2 if isinstance(spec.arity, Gated) else 1

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(weight: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            inputs, leaves = tensors[:count], tensors[count:]
            found = judged.run(spec, weight, inputs, leaves)
            return tuple(t.reshape(like.shape) for t, like in zip(found, tensors, strict=True))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def vmap(info: Any, in_dims: Any, *tensors: Tensor) -> Any:
            # Each element is a neuron with a shape of its own: its gradient is what it adds.
            size = info.batch_size
            weight, *inputs = (t.reshape(-1).expand(size) for t in tensors[: count + 1])
            leaves = [t.reshape(-1).expand(size) for t in tensors[count + 1 :]]
            found = judged.run(spec, weight, inputs, leaves)
            return tuple(t.reshape(size, 1) for t in found), (0,) * len(found)

    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(*tensors: Tensor) -> Tensor:
            (found,) = judged.run(spec, None, tensors[:count], tensors[count:])
            return found.reshape(tensors[0].shape)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, into: Tensor) -> Any:
            return Backward.apply(into, *ctx.saved_tensors)  # type: ignore[no-untyped-call]

        @staticmethod
        def vmap(info: Any, in_dims: Any, *tensors: Tensor) -> Any:
            leaves = [t.reshape(-1)[:1] for t in tensors[count:]]  # the same for every element
            return Forward.forward(*tensors[:count], *leaves), 0

    return Forward
