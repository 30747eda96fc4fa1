"""Losses as pure functions. Preference losses are attributes, imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stamm.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from stamm.losses.bradley_terry import bradley_terry_accuracy, bradley_terry_loss
    from stamm.losses.preference import (
        dpo_loss,
        ipo_loss,
        kto_loss,
        qrpo_loss,
        rebel_loss,
        simpo_loss,
    )
    from stamm.losses.quantile import quantile_rewards

__all__ = [
    "bradley_terry_accuracy",
    "bradley_terry_loss",
    "dpo_loss",
    "ipo_loss",
    "kto_loss",
    "qrpo_loss",
    "quantile_rewards",
    "rebel_loss",
    "simpo_loss",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(
        __name__,
        {
            "bradley_terry": ("bradley_terry_accuracy", "bradley_terry_loss"),
            "preference": (
                "dpo_loss",
                "ipo_loss",
                "kto_loss",
                "qrpo_loss",
                "rebel_loss",
                "simpo_loss",
            ),
            "quantile": ("quantile_rewards",),
        },
    )
