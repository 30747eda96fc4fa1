"""AdEMAMix: Adam with a second average of the gradient that remembers thousands of steps.

fast = b1 fast + (1 - b1) g         slow = b3(t) slow + (1 - b3(t)) g        v = b2 v + (1 - b2) g^2
p   -= lr [ (fast / (1 - b1^t) + alpha(t) slow) / (sqrt(v / (1 - b2^t)) + eps) + wd p ]

The slow average is not bias-corrected. Source: Pagliardini et al. 2024 (arXiv 2409.03137) and
the code Apertus was trained with; see `AdEMAMix` in config.py for alpha(t) and b3(t).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stamm.base.errors import ConfigError
from stamm.optim import fused
from stamm.optim.ademamix_math import numbers_at, update_lists
from stamm.optim.config import AdEMAMix
from stamm.optim.groups import check_float32

STATES = ("fast", "slow", "square")
_AT_ONCE = 2**22  # numbers of a batch of lists; a larger parameter is one by itself


class AdEMAMixOptimizer(Optimizer):
    """The update above, over lists of tensors or in one pass over memory: the same bits.

    total_steps    length of the run; warm-ups given as None last that long
    form           "fused" or "foreach", whichever is in use
    why            the reason why "auto" chose foreach; else empty
    Dtypes         float32: parameters, moments and every rounding
    Edge           a parameter without a gradient is not updated, and the steps of its group are
                   counted all the same: warm-ups are those of the run
    Raises         ConfigError for parameters of other than 32 bits; for implementation="fused"
                   where it cannot be built, with the reason
    Checked        tests/unit/optim/test_ademamix.py (500 steps against a float64 oracle)
    """

    def __init__(
        self, params: Iterable[Any], config: AdEMAMix, total_steps: int, lr: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": config.weight_decay, "step": 0})
        self.config = config
        self.total_steps = total_steps
        held = [p for group in self.param_groups for p in group["params"]]
        check_float32((f"number {k}", p) for k, p in enumerate(held))
        self.form, self.why = _form(config, held[0].device)

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
        numbers = numbers_at(
            self.config, group["step"], self.total_steps, group["lr"], group["weight_decay"]
        )
        rest = []
        for p in parameters:
            assert p.grad is not None
            tensors = (p, p.grad, *self._moments(p))
            if self.form == "fused" and fused.is_supported(*tensors):
                fused.update_fused(tensors, numbers)
            else:
                rest.append(tensors)  # another memory layout; the bits are the same
        for some in _batches(rest):
            update_lists(some, numbers)

    def _moments(self, p: Tensor) -> list[Tensor]:
        state = self.state[p]
        if not state:
            for name in STATES:
                state[name] = torch.zeros_like(p)
        return [state[name] for name in STATES]


def _batches(tensors: list[tuple[Tensor, ...]]) -> Iterator[list[tuple[Tensor, ...]]]:
    """Consecutive tensors in batches, large enough to launch and small enough in temporary memory."""
    batch: list[tuple[Tensor, ...]] = []
    numbers = 0
    for parameter_tensors in tensors:
        if batch and numbers + parameter_tensors[0].numel() > _AT_ONCE:
            yield batch
            batch, numbers = [], 0
        batch.append(parameter_tensors)
        numbers += parameter_tensors[0].numel()
    if batch:
        yield batch


def _form(config: AdEMAMix, device: torch.device) -> tuple[str, str]:
    if config.implementation == "foreach":
        return "foreach", ""
    why = fused.unavailable_reason(device)
    if why is None:
        return "fused", ""
    if config.implementation == "fused":
        raise ConfigError(
            f"optimizer.implementation = 'fused' cannot be built: {why}",
            fix="Use 'auto' or 'foreach': they give the same bits",
        )
    return "foreach", why
