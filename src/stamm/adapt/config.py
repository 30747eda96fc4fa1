"""Configuration of an activation swap. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from stamm.activations.catalog.registry import named_activation
from stamm.activations.spec import Gated, Spec
from stamm.base.bounds import AtLeastOne, Threads, at_least
from stamm.base.config import validate
from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig, Dense, GatedFFN, PlainFFN


@dataclass(frozen=True, kw_only=True)
class ReplacementConfig:
    """Replace the activation of a trained decoder.

    activation     an entry of the catalogue, or your own, as in `PlainFFN`: of one input for a plain
                   block, gated for a gated one
    text           file of texts, as in `stamm observe`: the first half is fitted on, the other
                   measured; None: the training and held-out documents of the run's packed corpus
    tokens         tokens that are fitted on, at most, and as many that are measured
    batch_tokens   tokens of one forward pass, padding included
    threads        CPU threads; part of the configuration because sums depend on it
    """

    activation: str | Spec = "xielu"
    text: str | None = None
    tokens: Annotated[int, at_least(2)] = 32_768
    batch_tokens: AtLeastOne = 4096
    threads: Threads = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", named_activation(self.activation))
        validate(self)


def swapped_config(config: DecoderConfig, activation: str | Spec) -> DecoderConfig:
    """The decoder with another activation, one shape per layer, and the same sizes.

    Raises   ConfigError when it has the activation already, one is gated and the other is not, a
             gated one multiplies by a function of up, or a matrix is structured
    """
    ffn = config.ffn
    if not isinstance(ffn.linear, Dense):
        raise ConfigError(
            f"the model's feed-forward matrices are {type(ffn.linear).__name__}",
            fix="Only dense matrices can take up the scales: export and import the model first",
        )
    swapped: PlainFFN | GatedFFN
    try:
        if isinstance(ffn, PlainFFN):
            swapped = replace(ffn, activation=activation, compat="exact", shapes="layer")
        else:
            swapped = replace(ffn, activation=activation, shapes="layer")
    except ConfigError as error:
        kind = "of one input" if isinstance(ffn, PlainFFN) else "gated"
        raise ConfigError(
            f"the model's blocks have {ffn.spec.name}, which is {kind}: {error.what}",
            where="activation",
            fix=f"Choose one that is {kind}: `stamm ls activations`",
        ) from None
    for spec in (ffn.spec, swapped.spec):
        if isinstance(spec.arity, Gated) and spec.arity.up is not None:
            raise ConfigError(
                f"{spec.name} multiplies by a function of up, which cannot be fitted",
                where="activation",
            )
    if swapped.spec.content_hash == ffn.spec.content_hash:
        raise ConfigError(f"the model has {ffn.spec.name} already", where="activation")
    return replace(config, ffn=swapped)
