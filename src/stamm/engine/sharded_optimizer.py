"""An optimizer over the pieces of a model that lie on this process.

AdamW and AdEMAMix change each number by itself and need only the numbers that are here; Muon, which
changes a matrix as a whole, gathers those that are divided. A model in one piece is the plain case. Its state has the names of the parameters, whatever the
division, so that a checkpoint written by some processes is read by others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stamm.engine.parallel import local
from stamm.optim.groups import set_learning_rate


class Updater:
    """Steps, and state by name.

    model   laid over the processes already
    build   from a map of parameters to what is changed in their place to an optimizer over these
    """

    def __init__(
        self,
        model: nn.Module,
        build: Callable[[Callable[[nn.Parameter], nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        self._whole = dict(model.named_parameters())
        self._pieces = {name: _piece(p) for name, p in self._whole.items()}
        by_parameter = {p: self._pieces[name] for name, p in self._whole.items()}
        self.optimizer = build(lambda p: by_parameter[p])

    def step(self, rate: float) -> None:
        """One update with learning rate `rate`; gradients are dropped afterwards."""
        set_learning_rate(self.optimizer, rate)
        for name, parameter in self._whole.items():
            piece = self._pieces[name]
            if piece is not parameter:
                piece.grad = None if parameter.grad is None else local(parameter.grad)
        self.optimizer.step()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Forget every gradient."""
        for name, parameter in self._whole.items():
            parameter.grad = self._pieces[name].grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state as "parameter name/state name", divided as its parameter is."""
        self._make_state()
        found: dict[str, Tensor] = {}
        for name, piece in self._pieces.items():
            for key, value in self.optimizer.state[piece].items():
                if isinstance(value, Tensor):
                    found[f"{name}/{key}"] = _as(self._whole[name], value)
        return found

    @property
    def counts(self) -> list[int]:
        """Updates made, by parameter group, where the optimizer counts them there."""
        return [group["step"] for group in self.optimizer.param_groups if "step" in group]

    @counts.setter
    def counts(self, counts: list[int]) -> None:
        """Go on counting from these."""
        counted = [group for group in self.optimizer.param_groups if "step" in group]
        for group, count in zip(counted, counts, strict=True):
            group["step"] = count

    def _make_state(self) -> None:
        """State is made by the first update; one with no gradient and no rate changes nothing."""
        if self.optimizer.state:
            return
        counts = self.counts
        for piece in self._pieces.values():
            piece.grad = torch.zeros_like(piece)
        set_learning_rate(self.optimizer, 0.0)
        self.optimizer.step()
        for piece in self._pieces.values():
            piece.grad = None
            for value in self.optimizer.state[piece].values():
                if isinstance(value, Tensor):
                    value.zero_()
        self.counts = counts


def _piece(parameter: nn.Parameter) -> nn.Parameter:
    if isinstance(parameter, DTensor):
        return nn.Parameter(parameter.to_local().detach())
    return parameter


def _as(parameter: Tensor, value: Tensor) -> Tensor:
    """`value`, which belongs to the piece of `parameter` here, as a piece of the whole."""
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
