"""AdEMAMix: Adam with a second average of the gradient that remembers thousands of steps.

fast = b1 fast + (1 - b1) g         slow = b3(t) slow + (1 - b3(t)) g        v = b2 v + (1 - b2) g^2
p   -= lr [ (fast / (1 - b1^t) + alpha(t) slow) / (sqrt(v / (1 - b2^t)) + eps) + wd p ]

The slow average is not bias-corrected. Source: Pagliardini et al. 2024 (arXiv 2409.03137) and
the code Apertus was trained with; see `AdEMAMix` in config.py for alpha(t) and b3(t).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stamm.optim.config import AdEMAMix

STATES = ("fast", "slow", "square")


class AdEMAMixOptimizer(Optimizer):
    """The update above, over lists of tensors.

    total_steps   length of the run; warm-ups given as None last that long
    Dtypes        moments in float32; the update is computed in float32 and rounded once
    Checked       tests/unit/optim/test_ademamix.py (300 steps against a float64 oracle)
    """

    def __init__(
        self, params: Iterable[Any], config: AdEMAMix, total_steps: int, lr: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": config.weight_decay, "step": 0})
        self.config = config
        self.total_steps = total_steps

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["step"] += 1
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update(parameters, group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        config, t = self.config, group["step"]
        alpha = config.alpha_at(t, self.total_steps)
        beta3 = config.beta3_at(t, self.total_steps)
        gradients = [p.grad.float() for p in parameters if p.grad is not None]
        fast, slow, square = self._moments(parameters)
        torch._foreach_lerp_(fast, gradients, 1 - config.beta1)
        torch._foreach_lerp_(slow, gradients, 1 - beta3)
        torch._foreach_mul_(square, config.beta2)
        torch._foreach_addcmul_(square, gradients, gradients, 1 - config.beta2)
        below = torch._foreach_sqrt(square)
        torch._foreach_div_(below, (1 - config.beta2**t) ** 0.5)
        torch._foreach_add_(below, config.eps)
        update = torch._foreach_div(fast, 1 - config.beta1**t)
        torch._foreach_add_(update, slow, alpha=alpha)
        torch._foreach_div_(update, below)
        if group["weight_decay"]:
            torch._foreach_add_(
                update, [p.float() for p in parameters], alpha=group["weight_decay"]
            )
        wide = [p if p.dtype == torch.float32 else p.float() for p in parameters]
        torch._foreach_add_(wide, update, alpha=-group["lr"])
        for p, w in zip(parameters, wide, strict=True):
            if p is not w:
                p.copy_(w)

    def _moments(self, parameters: list[Tensor]) -> tuple[list[Tensor], ...]:
        for p in parameters:
            if not self.state[p]:
                for name in STATES:
                    self.state[p][name] = torch.zeros_like(p, dtype=torch.float32)
        return tuple([self.state[p][name] for p in parameters] for name in STATES)
