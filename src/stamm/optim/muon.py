"""Muon for matrices of layers and AdamW for the rest, as one optimizer.

momentum <- mu momentum + (1 - mu) g
m        <- g + mu (momentum - g) with Nesterov, else momentum
W        <- W (1 - lr wd) - lr r(A, B) orthogonal(m)                      W of A rows and B columns

orthogonal(m) is U V^T of m = U S V^T, about: five Newton-Schulz steps in bfloat16. It and r are
torch.optim.Muon's, which sees whole matrices only: where a matrix lies in pieces over processes,
momentum and weights stay so, m is gathered, and each process takes its own piece of the result.
Given the same gradients, the division into pieces changes no bit.

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

    groups     of what is changed on this process: parameters, or the pieces of them that lie here
    layouts    for each of these the model's parameter, which knows how its pieces make a whole
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
        """State that was loaded is AdamW's, too."""
        super().__setstate__(state)
        self._link()

    def _link(self) -> None:
        # One state and one set of groups: what is read and written here is what AdamW works on.
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
        # Orthogonalising begins with bfloat16, so no bit is lost by sending no more.
        whole = whole_of(blend.bfloat16(), layout).float()
        change = piece_of(orthogonalised(whole, self.config), layout)
        parameter.mul_(1 - rate * decay)
        parameter.add_(change, alpha=rate)


def orthogonalised(matrix: Tensor, config: Muon) -> Tensor:
    """-r(A, B) U V^T of a whole matrix U S V^T of A x B, about: what learning rate 1 adds to it.

    The singular values of the result lie around 1, between 0.7 and 1.2 for most, times r.
    """
    held = nn.Parameter(torch.zeros_like(matrix))
    held.grad = matrix
    # Without momentum, decay and a start, one step of torch's Muon leaves its change and no more.
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
    """The whole matrix whose piece on this process is `piece`, laid out as `layout` is."""
    if not isinstance(layout, DTensor):
        return piece
    return _laid(piece, layout, layout.placements).full_tensor()


def piece_of(whole: Tensor, layout: Tensor) -> Tensor:
    """The piece of a whole matrix that belongs to this process."""
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
