"""Which parameters decay, by name. A pattern that matches no parameter is an error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torch import nn

from stamm.base.errors import ConfigError

NO_DECAY = (r"norm\.weight$", r"layernorm\.weight$", r"\.act_fn\.")


def parameter_groups(
    model: nn.Module, weight_decay: float, no_decay: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Optimizer groups: everything decays except norms, activation shapes and `no_decay`.

    no_decay   further regular expressions, searched in parameter names
    Edge       embeddings and the output matrix decay, as in Apertus
    Raises     ConfigError for an expression in `no_decay` that matches no parameter
    """
    named = [(name, parameter) for name, parameter in model.named_parameters()]
    further = tuple(no_decay)
    for pattern in further:
        if not any(re.search(pattern, name) for name, _ in named):
            raise ConfigError(
                f"no_decay pattern {pattern!r} matches no parameter", fix="See `stamm show RECIPE`"
            )
    patterns = [re.compile(pattern) for pattern in (*NO_DECAY, *further)]
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in named:
        free = parameter.dim() < 2 or any(pattern.search(name) for pattern in patterns)
        (kept if free else decayed).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
