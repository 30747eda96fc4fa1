"""Muon for matrices of layers and AdamW for the rest, as one optimizer.

momentum <- mu momentum + (1 - mu) g
m        <- g + mu (momentum - g) with Nesterov, else momentum
W        <- W (1 - lr wd) - lr r(A, B) orthogonal(m)                      W of A rows and B columns

orthogonal(m) approximates U V^T of m = U S V^T by five Newton-Schulz steps in bfloat16. It and r are
those of torch.optim.Muon, which needs whole matrices: of a sharded matrix, momentum and weights stay
sharded, m is gathered, and each process uses its own shard of the result. Given the same gradients,
sharding does not change the bits.

Source   Jordan et al. 2024 (kellerjordan.github.io/posts/muon); Liu et al. 2025 (arXiv 2502.16982)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from stamm.optim.config import Muon


class MuonWithAdamW(Optimizer):
    """The update above for groups whose "method" is "muon", torch's AdamW for the others.

    groups     parameters, or their local shards
    layouts    for each of these the model's parameter, which defines the sharding
    State      "momentum" of the first, "exp_avg", "exp_avg_sq" and "step" of the others
    Needs      on every process the same parameters with gradients: gathering is done together
    Checked    tests/unit/optim/test_muon.py (against torch.optim.Muon, alone and over processes)
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        config: Muon,
        layouts: Mapping[nn.Parameter, nn.Parameter] | None = None,
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": config.weight_decay})
        self.config = config
        self._layouts = dict(layouts or {})
        others = [group for group in self.param_groups if group["method"] != "muon"]
        betas = (config.beta1, config.beta2)
        self._adamw = (
            torch.optim.AdamW(others, lr=0.0, betas=betas, eps=config.eps, foreach=True)
            if others
            else None
        )
        self._link()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["method"] == "muon":
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, group["lr"], group["weight_decay"])
        if self._adamw is not None:
            self._adamw.step()
        return loss

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Share loaded state with AdamW."""
        super().__setstate__(state)
        self._link()

    def _link(self) -> None:
        # AdamW works on the same state and groups.
        if self._adamw is not None:
            self._adamw.state = self.state
            self._adamw.param_groups = [g for g in self.param_groups if g["method"] != "muon"]

    def _update(self, parameter: nn.Parameter, rate: float, decay: float) -> None:
        gradient = parameter.grad
        assert gradient is not None
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(gradient)
        momentum = state["momentum"].lerp_(gradient, 1 - self.config.momentum)
        blend = gradient.lerp(momentum, self.config.momentum) if self.config.nesterov else momentum
        layout = self._layouts.get(parameter, parameter)
        # Orthogonalisation starts in bfloat16: gathering bfloat16 loses no bits.
        whole = whole_of(blend.bfloat16(), layout).float()
        change = piece_of(orthogonalised(whole, self.config), layout)
        parameter.mul_(1 - rate * decay)
        parameter.add_(change, alpha=rate)


def orthogonalised(matrix: Tensor, config: Muon) -> Tensor:
    """-r(A, B) U V^T of a whole matrix U S V^T of A x B, about: the update of learning rate 1.

    The singular values of the result lie around 1, between 0.7 and 1.2 for most, times r.
    """
    held = nn.Parameter(torch.zeros_like(matrix))
    held.grad = matrix
    # From zero, without momentum and decay, one step of torch's Muon leaves only its update.
    torch.optim.Muon(
        [held],
        lr=1.0,
        weight_decay=0.0,
        momentum=0.0,
        nesterov=False,
        ns_steps=config.iterations,
        adjust_lr_fn=config.rate,
    ).step()  # type: ignore[no-untyped-call]
    return held.detach()


def whole_of(piece: Tensor, layout: Tensor) -> Tensor:
    """The whole matrix whose local shard is `piece`, sharded as `layout`."""
    if not isinstance(layout, DTensor):
        return piece
    return _laid(piece, layout, layout.placements).full_tensor()


def piece_of(whole: Tensor, layout: Tensor) -> Tensor:
    """The local shard of a whole matrix."""
    if not isinstance(layout, DTensor):
        return whole
    everywhere = [Replicate()] * layout.device_mesh.ndim
    return _laid(whole, layout, everywhere).redistribute(placements=layout.placements).to_local()


def _laid(tensor: Tensor, layout: DTensor, placements: Any) -> DTensor:
    return DTensor.from_local(
        tensor,
        layout.device_mesh,
        placements,
        run_check=False,
        shape=layout.shape,
        stride=layout.stride(),
    )
