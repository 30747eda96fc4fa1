"""State of a user's optimizer in checkpoints: tensors by parameter name, numbers in state.json.

Nothing is assumed about when the state is created or what it starts from: what the optimizer holds
when a checkpoint is written is what it holds after loading. Built-in optimizers use
`ShardedOptimizer` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from stamm.base.errors import ConfigError
from stamm.base.user_code import guarded
from stamm.engine.sharded_optimizer import STATE_PREFIX, ShardedOptimizer, as_parameter

_GIVEN = {"params", "names", "lr"}  # of a group; "lr" is set before every step


class CustomShardedOptimizer(ShardedOptimizer):
    """`ShardedOptimizer` for a user's optimizer.

    Saved    every tensor and number in optimizer.state, and every number of a parameter group that
             the optimizer has changed since it was built
    Raises   ConfigError, at the first checkpoint, for state that cannot be saved: not a
             tensor or a number; divided over processes, for state that is neither of the
             shard's shape nor a single number
    """

    def __init__(
        self,
        model: nn.Module,
        build: Callable[[Callable[[nn.Parameter], nn.Parameter]], torch.optim.Optimizer],
        file: Path,
    ) -> None:
        super().__init__(model, build)
        self._file = file
        self._initial = [_group_values(group) for group in self.optimizer.param_groups]

    def tensors(self) -> dict[str, Tensor]:
        """Every state tensor as "parameter name/state name", sharded as its parameter is."""
        state_tensors: dict[str, Tensor] = {}
        for name, key, value in self._state():
            if isinstance(value, Tensor):
                parameter = self._whole[name]
                if isinstance(parameter, DTensor) and value.numel() > 1:
                    self._check_shape(name, key, value)
                state_tensors[f"{name}/{key}"] = as_parameter(parameter, value.detach())
        return state_tensors

    @property
    def counts(self) -> list[int]:
        """Empty: counts are among the values."""
        return []

    @counts.setter
    def counts(self, counts: list[int]) -> None:
        """Ignored: `replace` restores them."""

    def values(self) -> dict[str, Any]:
        """Numbers of the state, by parameter and name, and what changed in the groups; JSON values."""
        state: dict[str, dict[str, Any]] = {}
        for name, key, value in self._state():
            if not isinstance(value, Tensor):
                state.setdefault(name, {})[key] = value
        groups = [
            {key: value for key, value in _group_values(group).items() if initial.get(key) != value}
            for group, initial in zip(self.optimizer.param_groups, self._initial, strict=True)
        ]
        return {"class": type(self.optimizer).__qualname__, "state": state, "groups": groups}

    def misfit(self, values: Mapping[str, Any] | None) -> str:
        """Why the values of a checkpoint are not those of this optimizer; "" when they fit."""
        if values is None:
            return "it was written by a built-in optimizer"
        if values["class"] != type(self.optimizer).__qualname__:
            return f"it was written by {values['class']}, not {type(self.optimizer).__qualname__}"
        if len(values["groups"]) != len(self._initial):
            return (
                f"it does not fit the optimizer: {len(values['groups'])} groups of parameters there, "
                f"{len(self._initial)} here"
            )
        return ""

    def load_targets(self, metadata: Metadata) -> dict[str, Tensor]:
        """Empty tensors for the state in a checkpoint, to be read into and then passed to `replace`."""
        targets: dict[str, Tensor] = {}
        for full, stored in metadata.state_dict_metadata.items():
            name, _, _key = full.removeprefix(STATE_PREFIX).rpartition("/")
            parameter = self._whole.get(name)
            if (
                not full.startswith(STATE_PREFIX)
                or parameter is None
                or not isinstance(stored, TensorStorageMetadata)
            ):
                continue
            shard, dtype = self._shards[name], stored.properties.dtype
            local = isinstance(parameter, DTensor) and stored.size == parameter.shape
            shape = shard.shape if local else stored.size
            empty = torch.empty(shape, dtype=dtype, device=shard.device)
            targets[full.removeprefix(STATE_PREFIX)] = as_parameter(parameter, empty)
        return targets

    def replace(self, targets: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Replace the whole state by what was loaded."""
        state = self.optimizer.state
        state.clear()
        for full, value in targets.items():
            name, _, key = full.rpartition("/")
            state[self._shards[name]][key] = (
                value.to_local() if isinstance(value, DTensor) else value
            )
        for name, numbers in values["state"].items():
            if name in self._shards:
                state[self._shards[name]].update(numbers)
        for group, initial, changed in zip(
            self.optimizer.param_groups, self._initial, values["groups"], strict=True
        ):
            for key in set(_group_values(group)) - set(initial):
                del group[key]
            group.update({**initial, **changed})

    def _update(self) -> None:
        guarded(self._file, self.optimizer.step)

    def _state(self) -> list[tuple[str, str, Any]]:
        """(parameter name, state name, value) of all state."""
        names: dict[Tensor, str] = {shard: name for name, shard in self._shards.items()}
        entries: list[tuple[str, str, Any]] = []
        for parameter, state in self.optimizer.state.items():
            if parameter not in names or not isinstance(state, dict):
                self._refuse(f"the state {parameter!r:.40} is not that of a parameter")
            for key, value in state.items():
                if not isinstance(value, Tensor | int | float | str | None):
                    self._refuse(f"state[parameter][{key!r}] is a {type(value).__name__}")
                if not isinstance(key, str) or "/" in key:
                    self._refuse(f"state[parameter] has the key {key!r}")
                entries.append((names[parameter], key, value))
        return entries

    def _check_shape(self, name: str, key: str, value: Tensor) -> None:
        shard = self._shards[name]
        if value.shape != shard.shape:
            self._refuse(
                f"state {key!r} of {name} has shape {tuple(value.shape)}, and the shard of this "
                f"process has {tuple(shard.shape)}"
            )

    def _refuse(self, what: str) -> None:
        raise ConfigError(
            f"the state of the optimizer cannot be saved: {what}",
            where=str(self._file),
            fix="Keep tensors and numbers in self.state[parameter]; over several processes of the "
            "parameter's shape or single numbers",
        )


def _group_values(group: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a group, without what `set_learning_rate` sets; JSON values."""
    return {
        key: value
        for key, value in group.items()
        if key not in _GIVEN and isinstance(value, int | float | str | None)
    }
