"""Tensor and sequence parallel style of activations, for plans of `parallelize_module`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.placement_types import Placement

from stamm.activations.module.activation import Activation, ActivationModule, GatedActivation, Value
from stamm.activations.module.parallel import added_in_rank_order
from stamm.base.errors import ConfigError


class ShapedActivationParallel(ParallelStyle):
    """Activation on sharded inputs and outputs, with the all-reduced gradient of its shape.

        parallelize_module(layer.mlp, mesh["tp"], {
            "up_proj": ColwiseParallel(),
            "act_fn": ShapedActivationParallel(),
            "down_proj": RowwiseParallel(),
        })

    Every process computes on its own part of the input; the shape parameters become DTensors,
    replicated, and the backward pass adds their partial gradients up over the mesh, in float64 in
    the order of the ranks. Nothing is communicated for inputs and outputs.

    dim      the dimension of the input that is split: -1 the hidden one (tensor parallel), 1 the
             tokens (sequence parallel). Parameters with one value for each neuron or group are
             split with the hidden dimension, and then need no sum.
    Inputs   local tensors, which are taken to be split so, or DTensors, which are redistributed
             where they are not; the output is what the input was
    Raises   ConfigError for another kind of module, or neurons that the mesh does not divide.
    Checked  tests/unit/activations/test_parallel.py
    """

    def __init__(self, *, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        kind = _KINDS.get(type(module))
        if kind is None:
            raise ConfigError(
                f"{type(module).__name__} is not an activation module",
                fix="Give this style to modules made by build_activation",
            )
        if device_mesh.ndim != 1:
            raise ConfigError(
                f"the mesh has {device_mesh.ndim} dimensions", fix='Choose one, as in mesh["tp"]'
            )
        for name, parameter in list(module.named_parameters(recurse=False)):
            placement = self._placement(name, parameter, device_mesh)
            spread = distribute_tensor(
                parameter.detach(), device_mesh, [placement], src_data_rank=self.src_data_rank
            )
            module.register_parameter(name, nn.Parameter(spread, parameter.requires_grad))
        module.__class__ = kind
        assert isinstance(module, _Parallel)
        module.split = (device_mesh, self.dim)
        return module

    def _placement(self, name: str, parameter: Tensor, mesh: DeviceMesh) -> Placement:
        if self.dim != -1 or parameter.numel() == 1:
            return Replicate()
        if parameter.shape[0] % mesh.size():
            raise ConfigError(
                f"{name} has {parameter.shape[0]} values, which {mesh.size()} processes cannot"
                " split evenly",
                fix="Use a number of processes that divides it",
            )
        return Shard(0)


class _Parallel(ActivationModule):
    """Base of both kinds: computes on local tensors.

    split   the mesh, and the dimension of the input that is split over it
    """

    split: tuple[DeviceMesh, int]

    def forward(self, *inputs: Tensor) -> Tensor:
        """The activation of the local part of the inputs."""
        mesh, dim = self.split
        with self._holding(_Local.apply):
            y: Tensor = super().forward(*(_part(x, mesh, dim) for x in inputs))
        first = inputs[0]
        if not isinstance(first, DTensor):
            return y
        placement = Shard(dim % first.dim())
        return DTensor.from_local(
            y, mesh, [placement], run_check=False, shape=first.shape, stride=first.stride()
        )

    def values(self, *, raw: bool) -> dict[str, Value]:
        """The values of all neurons: sharded parameters are gathered."""
        with torch.no_grad(), self._holding(DTensor.full_tensor):
            return super().values(raw=raw)

    def load_values(self, values: Mapping[str, Value], *, raw: bool) -> None:
        """Raises ConfigError: load values before the module is parallelized."""
        raise ConfigError(
            f"the shape of {self.spec.name} is already sharded over processes",
            fix="Load values before parallelize_module",
        )

    @contextmanager
    def _holding(self, of: Callable[[DTensor], Tensor]) -> Iterator[None]:
        """The module with plain tensors in place of its parameters, inside the `with` block."""
        stored: dict[str, Any] = dict(self._parameters)
        plain: dict[str, Any] = {name: of(parameter) for name, parameter in stored.items()}
        self._parameters.update(plain)
        try:
            yield
        finally:
            self._parameters.update(stored)

    def _for_neurons(self, values: Tensor) -> Tensor:
        """One value for each local neuron."""
        if self.neurons is None or values.numel() == 1:
            return values
        return values[:, None].expand(-1, self.neurons // self.count).reshape(-1)


class ParallelActivation(_Parallel, Activation):
    """An Activation whose input is split over processes."""


class ParallelGatedActivation(_Parallel, GatedActivation):
    """A GatedActivation whose inputs are split over processes."""


_KINDS: dict[type[nn.Module], type[_Parallel]] = {
    Activation: ParallelActivation,
    GatedActivation: ParallelGatedActivation,
}


class _Local(torch.autograd.Function):
    """The local values of a shape parameter; backward sums the parts, unless it is split."""

    @staticmethod
    def forward(ctx: Any, parameter: DTensor) -> Tensor:
        ctx.layout = (
            parameter.device_mesh,
            parameter.placements,
            parameter.shape,
            parameter.stride(),
        )
        local = parameter.to_local()
        return local.view_as(local)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, part: Tensor) -> DTensor:
        mesh, placements, shape, stride = ctx.layout
        if placements[0].is_replicate():
            part = added_in_rank_order(part, mesh.get_group()).to(part.dtype)
        return DTensor.from_local(
            part, mesh, placements, run_check=False, shape=shape, stride=stride
        )


def _part(x: Tensor, mesh: DeviceMesh, dim: int) -> Tensor:
    """The local part of an input, split as the style defines."""
    if dim == x.dim() - 1:
        raise ConfigError(
            f"dim = {dim} is the hidden dimension of an input of shape {tuple(x.shape)}",
            fix="Write dim=-1, by which parameters of one neuron each are split too",
        )
    if not isinstance(x, DTensor):
        return x
    wanted = (Shard(dim % x.dim()),)
    placed = x if x.placements == wanted else x.redistribute(mesh, wanted)
    part: Tensor = placed.to_local()
    return part
