"""Parameter groups from names and shapes alone. No torch here: `stamm plan` prints them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from stamm.base.errors import ConfigError
from stamm.base.time_limit import MATCH_SECONDS, time_limit
from stamm.optim.config import AdEMAMix, CustomOptimizer, GroupRule, Muon, OptimizerConfig

Method = Literal["adamw", "ademamix", "muon", "custom"]
NO_DECAY = (r"norm\.weight$", r"layernorm\.weight$", r"\.act_fn\.")
_STATE_PER_PARAMETER = {"adamw": 2.0, "ademamix": 3.0, "muon": 1.0, "custom": 2.0}
_OF_LAYERS = re.compile(r"(^|\.)layers\.")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters with the same method, learning-rate factor and weight decay.

    label   "matrices", "vectors", "shapes", or the pattern of the rule that matched
    sizes   number of elements of each parameter, by name, in the model's order
    state_per_parameter   numbers of 32 bits that the optimizer keeps for each
    """

    label: str
    method: Method
    lr_factor: float
    weight_decay: float
    sizes: Mapping[str, int]
    state_per_parameter: float

    @property
    def numbers(self) -> int:
        """Number of elements."""
        return sum(self.sizes.values())

    @property
    def moments(self) -> int:
        """Numbers of 32 bits that the optimizer keeps for them."""
        return round(self.numbers * self.state_per_parameter)


def grouped(
    config: OptimizerConfig,
    shapes: Mapping[str, tuple[int, ...]],
    learned: Collection[str] | None = None,
) -> list[Group]:
    """The groups of the parameters with these names and shapes, none of them empty.

    Without rules: matrices, which decay; vectors (norms, biases), which do not; and the trainable
    shapes of activations, which do not and have `config.shape_lr_factor`. A rule takes the
    parameters that its pattern matches out of these. Groups come in that order, the rules' last, in theirs.

    learned   names of trainable shapes of activations; None finds them by ".act_fn."
    Edge      embeddings and the output matrix decay, as in Apertus. A rule without a weight decay
              leaves each parameter its own, so that it may make two groups
    Raises    ConfigError for a rule that matches no parameter; for Muon on a model without a matrix
              in a layer
    """
    if learned is None:
        learned = {name for name in shapes if ".act_fn." in name}
    groups: dict[_Key, dict[str, int]] = {}
    for name, shape in shapes.items():
        kind = _kind(name, shape, name in learned)
        rule_index = _deciding(config.groups, name)
        key = _Key(
            place=_KINDS.index(kind) if rule_index is None else len(_KINDS) + rule_index,
            label=kind,
            method=_method(config, name, shape, kind),
            lr_factor=config.shape_lr_factor if kind == "shapes" else 1.0,
            weight_decay=config.weight_decay if kind == "matrices" else 0.0,
        )
        if rule_index is not None:
            key = _ruled(key, config.groups[rule_index])
        groups.setdefault(key, {})[name] = math.prod(shape)
    _check_rules_match(config.groups, {key.place - len(_KINDS) for key in groups}, shapes)
    if isinstance(config, Muon) and not any(key.method == "muon" for key in groups):
        raise ConfigError("optimizer=Muon finds no matrix in a layer", fix="Use AdamW")
    return [
        Group(
            label=key.label,
            method=key.method,
            lr_factor=key.lr_factor,
            weight_decay=key.weight_decay,
            sizes=groups[key],
            state_per_parameter=_state(config, key.method),
        )
        for key in sorted(groups, key=lambda key: (key.place, key.method, -key.weight_decay))
    ]


_KINDS = ("matrices", "vectors", "shapes")


class _Key(NamedTuple):
    """Properties that the parameters of one group share."""

    place: int
    label: str
    method: Method
    lr_factor: float
    weight_decay: float


def _ruled(key: _Key, rule: GroupRule) -> _Key:
    decay = key.weight_decay if rule.weight_decay is None else rule.weight_decay
    return key._replace(label=rule.pattern, lr_factor=rule.lr_factor, weight_decay=decay)


def _kind(name: str, shape: tuple[int, ...], learned: bool) -> str:
    if learned:
        return "shapes"
    free = len(shape) < 2 or any(re.search(pattern, name) for pattern in NO_DECAY)
    return "vectors" if free else "matrices"


def _state(config: OptimizerConfig, method: Method) -> float:
    measured = config.state_per_parameter if isinstance(config, CustomOptimizer) else None
    return _STATE_PER_PARAMETER[method] if measured is None else measured


def _method(config: OptimizerConfig, name: str, shape: tuple[int, ...], kind: str) -> Method:
    if isinstance(config, CustomOptimizer):
        return "custom"
    if isinstance(config, AdEMAMix):
        return "ademamix"
    if not isinstance(config, Muon):
        return "adamw"
    whole = kind == "matrices" and len(shape) == 2 and _OF_LAYERS.search(name)
    return "muon" if whole else "adamw"


def _deciding(rules: tuple[GroupRule, ...], name: str) -> int | None:
    return next((k for k, rule in enumerate(rules) if _matches(rule.pattern, name)), None)


def _matches(pattern: str, name: str) -> bool:
    try:
        with time_limit():
            return re.search(pattern, name) is not None
    except TimeoutError:
        raise ConfigError(
            f"pattern {pattern!r} takes more than {MATCH_SECONDS} s on the name {name!r}",
            where="optimizer.groups",
            fix="Write it without a repetition inside a repetition, such as (a+)+",
        ) from None


def _check_rules_match(
    rules: tuple[GroupRule, ...], used: Collection[int], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    for index, rule in enumerate(rules):
        if index in used:
            continue
        matched = any(_matches(rule.pattern, name) for name in shapes)
        said = "only parameters of earlier rules" if matched else "no parameter"
        names = ", ".join(list(shapes)[:3])
        raise ConfigError(
            f"optimizer.groups.{index}.pattern = {rule.pattern!r} matches {said}",
            fix="Put it before them" if matched else f"Names look like {names}",
        )
