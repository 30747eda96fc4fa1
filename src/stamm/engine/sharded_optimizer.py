"""An optimizer over the local shards of a model's trainable parameters, with state that any number of processes can load.

AdamW and AdEMAMix are elementwise and need only the local shard; Muon, which needs whole matrices, gathers
them. The state has the names of the parameters, however they are sharded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.tensor import DTensor

from stamm.engine.parallel import local_shard
from stamm.optim.groups import set_learning_rate

STATE_PREFIX = "optimizer/"
"""Of the names of state tensors in a checkpoint."""


class ShardedOptimizer:
    """Optimizer steps, and optimizer state by parameter name.

    model   already sharded over the processes
    build   makes the optimizer, given a function from each parameter to its local shard
    """

    def __init__(
        self,
        model: nn.Module,
        build: Callable[[Callable[[nn.Parameter], nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        self._whole = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._shards = {name: _shard(p) for name, p in self._whole.items()}
        by_parameter = {p: self._shards[name] for name, p in self._whole.items()}
        self.optimizer = build(lambda p: by_parameter[p])

    def step(self, rate: float) -> None:
        """One update with learning rate `rate`; gradients are set to None afterwards."""
        set_learning_rate(self.optimizer, rate)
        for name, parameter in self._whole.items():
            shard = self._shards[name]
            if shard is not parameter:
                shard.grad = None if parameter.grad is None else local_shard(parameter.grad)
        self._update()
        self.zero_grad()

    def _update(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        """Set every gradient to None."""
        for name, parameter in self._whole.items():
            parameter.grad = self._shards[name].grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Every state tensor as "parameter name/state name", sharded as its parameter is."""
        self._make_state()
        state_tensors: dict[str, Tensor] = {}
        for name, shard in self._shards.items():
            for key, value in self.optimizer.state[shard].items():
                if isinstance(value, Tensor):
                    state_tensors[f"{name}/{key}"] = as_parameter(self._whole[name], value)
        return state_tensors

    def values(self) -> dict[str, Any] | None:
        """State that is not a tensor, as JSON values; None: the `counts` are all."""
        return None

    def misfit(self, values: Mapping[str, Any] | None) -> str:
        """Why the `values` of a checkpoint are not those of this optimizer; "" when they fit."""
        return "" if values is None else f"it was written by {values['class']}"

    def load_targets(self, metadata: Metadata) -> dict[str, Tensor]:
        """The state tensors to read a checkpoint with this metadata into; then call `replace`.

        A parameter that never had a gradient has no state in the checkpoint.
        """
        held = {_owner(name.removeprefix(STATE_PREFIX)) for name in metadata.state_dict_metadata}
        return {name: value for name, value in self.tensors().items() if _owner(name) in held}

    def replace(self, targets: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Complete loading with the tensors that were read and the `values` of the checkpoint."""
        held = {_owner(name) for name in targets}
        for name, shard in self._shards.items():
            if name not in held:
                self.optimizer.state.pop(shard, None)

    @property
    def counts(self) -> list[int]:
        """Updates made, by parameter group, where the optimizer counts them there."""
        return [group["step"] for group in self.optimizer.param_groups if "step" in group]

    @counts.setter
    def counts(self, counts: list[int]) -> None:
        """Continue counting from these."""
        counted = [group for group in self.optimizer.param_groups if "step" in group]
        for group, count in zip(counted, counts, strict=True):
            group["step"] = count

    def _make_state(self) -> None:
        """Create the state by a first update, with zero gradients and learning rate 0: nothing changes."""
        if self.optimizer.state:
            return
        counts = self.counts
        for shard in self._shards.values():
            shard.grad = torch.zeros_like(shard)
        set_learning_rate(self.optimizer, 0.0)
        self.optimizer.step()
        for shard in self._shards.values():
            shard.grad = None
            for value in self.optimizer.state[shard].values():
                if isinstance(value, Tensor):
                    value.zero_()
        self.counts = counts


def _owner(state: str) -> str:
    """The name of the parameter in the name of a state tensor."""
    return state.rpartition("/")[0]


def _shard(parameter: nn.Parameter) -> nn.Parameter:
    if isinstance(parameter, DTensor):
        return nn.Parameter(parameter.to_local().detach())
    return parameter


def as_parameter(parameter: Tensor, value: Tensor) -> Tensor:
    """State `value` of the local shard of `parameter`, as a DTensor like the parameter."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.to_local().shape:
        return value
    return DTensor.from_local(
        value,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
