"""Steps that check the activations of a recipe that are the user's own."""

from __future__ import annotations

from collections.abc import Iterable

from stamm.activations.spec import Spec
from stamm.base.errors import ConfigError
from stamm.models.config import GatedFFN, PlainFFN
from stamm.pretrain.activation_check_config import ActivationCheckConfig
from stamm.runs.job import Step


def activation_steps(blocks: Iterable[PlainFFN | GatedFFN]) -> list[Step]:
    """One step for each activation of `blocks` that is not an entry of the catalogue.

    Raises   ConfigError when two different activations have the same name.
    """
    own: dict[str, Spec] = {}
    for block in blocks:
        spec = block.spec
        if isinstance(block.activation, str):
            continue
        known = own.setdefault(spec.name, spec)
        if known.content_hash != spec.content_hash:
            raise ConfigError(
                f"two activations are called {spec.name!r}: content hashes {known.content_hash[:12]}"
                f" and {spec.content_hash[:12]}",
                fix="Give one of them another name",
            )
    return [
        Step(
            name=f"activation.{name}",
            job="activation",
            config=ActivationCheckConfig(spec=spec),
            folder=f"activations/{name}",
            outputs=("spec.json", "accuracy.json"),
        )
        for name, spec in own.items()
    ]
