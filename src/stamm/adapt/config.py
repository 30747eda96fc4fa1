"""Configuration of changes of a trained model. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from stamm.activations.catalog.registry import named_activation, spec_of
from stamm.activations.spec import Spec
from stamm.activations.spec.cut import cut_at_one
from stamm.base.bounds import AtLeastOne, Seed, Threads, at_least, within
from stamm.base.config import Bounded, validate
from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig, Dense, Experts, GatedFFN, PlainFFN


@dataclass(frozen=True, kw_only=True)
class TextConfig(Bounded):
    """The text that a change is calibrated on, and that it is measured on.

    text           file of texts, as in `stamm observe`: the first half is fitted on, the other
                   measured; None: the training and held-out documents of the run's packed corpus
    tokens         tokens that are fitted on, at most, and as many that are measured
    batch_tokens   tokens of one forward pass, padding included
    threads        CPU threads; part of the configuration because sums depend on it
    """

    text: str | None = None
    tokens: Annotated[int, at_least(2)] = 32_768
    batch_tokens: AtLeastOne = 4096
    threads: Threads = 2


def require_dense(config: DecoderConfig, purpose: str) -> None:
    """Raise ConfigError for structured feed-forward matrices; `purpose` is what dense ones can do."""
    if not isinstance(config.ffn.linear, Dense):
        raise ConfigError(
            f"the model's feed-forward matrices are {type(config.ffn.linear).__name__}",
            fix=f"Only dense matrices can {purpose}: export and import the model first",
        )


@dataclass(frozen=True, kw_only=True)
class CarveConfig(TextConfig):
    """Divide the feed-forward blocks of a trained decoder into experts.

    experts   count, active, shared
    seed      of the groups, and of the random ones beside them
    """

    experts: Experts = field(default_factory=Experts)
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class StressConfig(TextConfig):
    """Flipped bits and noise in a trained decoder; `rate` is the share of weights in which a bit is flipped."""

    tokens: Annotated[int, at_least(2)] = 2048
    rate: Annotated[float, within("(0, 1)")] = 0.001
    seed: Seed = 0


def carved_config(config: DecoderConfig, experts: Experts) -> DecoderConfig:
    """The decoder with experts, and the same sizes.

    Raises   ConfigError when it has experts already, when they do not divide the width, or a matrix is
             structured
    """
    ffn = config.ffn
    if ffn.experts is not None:
        raise ConfigError("the model has experts already", fix="Carve the dense model")
    if ffn.shapes == "neuron":
        raise ConfigError(
            "the model's activation has parameters per neuron, which experts do not have",
            fix="Carve a model with one set per layer",
        )
    require_dense(config, "be divided into experts")
    return replace(config, ffn=replace(ffn, experts=experts))


@dataclass(frozen=True, kw_only=True)
class SparsifyConfig(TextConfig):
    """Set small outputs of the units of a trained decoder to 0, by a threshold in its activation.

    share        of units, over all layers and tokens of the calibration text; 0: only the activation changes
    perplexity   instead: the largest factor of the perplexity of the calibration text, against the
                 model before; None with share
    activation   that replaces the model's first, as in `ReplacementConfig`; None: its own
    """

    share: Annotated[float, within("[0, 1)")] | None = None
    perplexity: Annotated[float, within("(1, 10]")] | None = 1.01
    activation: str | Spec | None = None

    def __post_init__(self) -> None:
        if self.activation is not None:
            object.__setattr__(self, "activation", named_activation(self.activation))
        single = (self.share is None) != (self.perplexity is None)
        validate(self, ("share", single, "or perplexity: set one, and the other to none"))


def sparse_config(config: DecoderConfig, wanted: SparsifyConfig) -> DecoderConfig:
    """The decoder with thresholds in its activation, and the same sizes.

    Raises   ConfigError when no matrix can take up the threshold of the activation, or as `swapped_config`
    """
    if config.ffn.experts is not None:
        raise ConfigError("the model has experts", fix="Sparsify the dense model, then carve")
    dense = unthresholded_config(config, wanted)
    if wanted.share == 0:
        return dense
    require_dense(dense, "take up thresholds")
    return replace(dense, ffn=replace(dense.ffn, activation=cut_at_one(dense.ffn.spec)))


def unthresholded_config(config: DecoderConfig, wanted: SparsifyConfig) -> DecoderConfig:
    """The decoder before its thresholds: with the activation that replaces its own, if that is another."""
    if wanted.activation is None:
        return config
    if spec_of(wanted.activation).content_hash == config.ffn.spec.content_hash:
        return config
    return swapped_config(config, wanted.activation)


@dataclass(frozen=True, kw_only=True)
class ReplacementConfig(TextConfig):
    """Replace the activation of a trained decoder.

    activation   an entry of the catalogue, or your own, as in `PlainFFN`: of one input for a plain
                 block, gated for a gated one
    """

    activation: str | Spec = "xielu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", named_activation(self.activation))
        validate(self)


def swapped_config(config: DecoderConfig, activation: str | Spec) -> DecoderConfig:
    """The decoder with another activation, one shape per layer, and the same sizes.

    Raises   ConfigError when it has the activation already, one is gated and the other is not, or a
             matrix is structured
    """
    ffn = config.ffn
    if ffn.experts is not None:
        raise ConfigError("the model has experts", fix="Change the activation first, then carve")
    require_dense(config, "take up the scales")
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
    if swapped.spec.content_hash == ffn.spec.content_hash:
        raise ConfigError(
            f"the model has {ffn.spec.name} already",
            where="activation",
            fix="Choose another: `stamm ls activations`",
        )
    return replace(config, ffn=swapped)
