"""Every number of every configuration, set as on the command line to zero, NaN, infinities and huge values."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

import pytest

from stamm.activations.spec import Spec
from stamm.align.rewards.config import ScoreConfig
from stamm.align.sampling.config import ChatConfig, SampleConfig
from stamm.base.bounds import stated_bounds
from stamm.base.config import override
from stamm.base.decoder import classes_of, field_types, members_of
from stamm.base.errors import ConfigError
from stamm.corpus.goldfish_check import GoldfishCheck
from stamm.export.config import ExportConfig
from stamm.observe.config import ObserveConfig
from stamm.recipes.catalog import RECIPES
from stamm.steer.config import SteerConfig

VALUES = ("0", "-1", "nan", "inf", "-inf", "1e30", "1e18", "1e-300", "-1e300")
VERBS = (ScoreConfig, ChatConfig, GoldfishCheck, ExportConfig, ObserveConfig)
# What a class needs beside the number.
NEEDED = {
    "BlockDense": ("rank=8",),
    "ClassifierConfig": ("labelled=a",),
    "ContaminationConfig": ("sets=EvaluationSet", "sets.0.name=a", "sets.0.file=b"),
    "CustomOptimizer": ("reference=mine.py:Mine",),
    "DataSource": ("data=a",),
    "GroupRule": ("pattern=a",),
    "Integrals": ("of=elu",),
    "LanguageTrainConfig": ("inputs=a",),
    "Linear": ("basis=x,x**2",),
    "LongerStage": ("context=8", "theta=1", "tokens=8", "batch=1"),
    "LowRank": ("rank=8",),
    "NotMemorized": ("corpus=a",),
    "ProbesConfig": ("books=a",),
    "QualityFitConfig": ("inputs=a",),
    "SlurmExecutor": ("tasks=1",),
    "SourceShare": ("epochs=1",),
    "Stage": ("name=a", "sources=SourceShare", "sources.0.epochs=1"),
    "Weighted": ("rewards=Length",),
}
# Infinity turns gradient clipping off. No other number may be infinite, and none NaN.
MAY_BE_INFINITE = {"clip_norm"}


@dataclass(frozen=True)
class Number:
    """A number that can be set, and the assignments without which its class is not there."""

    root: str
    kind: type
    field: str
    path: str
    before: tuple[str, ...]
    is_list: bool

    def set(self, value: str) -> Any:
        """The field after an override."""
        words = [word for word in self.before if not word.startswith(f"{self.path}=")]
        words.append(f"{self.path}={f'[{value}]' if self.is_list else value}")
        changed = override(roots()[self.root], words)
        for key in self.path.split("."):
            changed = changed[int(key)] if key.isdigit() else getattr(changed, key)
        return changed


@functools.cache
def roots() -> dict[str, Any]:
    """The configurations of all recipes, and of the verbs that have one of their own."""
    recipes = {recipe.name: recipe.build() for recipe in RECIPES}
    verbs = {kind.__name__: kind() for kind in VERBS}
    guided = ["model.ffn.linear=BlockShuffle", "model.structured.guide=SelfGuide"]
    return {
        **recipes,
        **verbs,
        "sample": SampleConfig(prompts="-", vector="-"),
        "steer": SteerConfig(positive="-", negative="-"),
        "guided": override(recipes["pretrain.apertus_8b"], guided),
    }


@functools.cache
def reachable(kind: type) -> set[type]:
    """A class and all that its fields may hold."""
    reached: set[type] = set()
    waiting = [kind]
    while waiting:
        inner = waiting.pop()
        if inner not in reached and inner is not Spec:
            reached.add(inner)
            for hint in field_types(inner).values():
                elements = [get_args(m)[0] for m in members_of(hint) if get_origin(m) is tuple]
                for member in (hint, *elements):
                    waiting += classes_of(member)
    return reached


@functools.cache
def is_possible(root: str, before: tuple[str, ...]) -> bool:
    """Whether the assignments that a number needs are accepted on their own."""
    try:
        override(roots()[root], before)
    except ConfigError:
        return False
    return True


def numbers_of(
    root: str, kind: type, value: Any, path: str, before: tuple[str, ...], known: set[type]
) -> Iterator[Number]:
    """The numbers of a class and of all classes that its fields may hold, without those of `known` classes.

    value   what `path` holds; None: `before` chooses the class
    """
    if value is None:
        needed = (f"{path}.{word}" for word in NEEDED.get(kind.__name__, ()))
        before += tuple(word for word in needed if word not in before)
    if reachable(kind) <= known or not is_possible(root, before):
        return
    is_new = kind not in known
    known.add(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    for name, hint in field_types(kind).items():
        if name not in names:
            continue
        below, held = f"{path}.{name}" if path else name, getattr(value, name, None)
        members = members_of(hint)
        elements = [get_args(member)[0] for member in members if get_origin(member) is tuple]
        if is_new and {int, float} & {*members, *elements}:
            yield Number(root, kind, name, below, before, bool(elements))
        inside = [(below, held, inner) for inner in classes_of(hint)]
        for element in elements:
            inside += [
                (f"{below}.0", held[0] if held else None, inner) for inner in classes_of(element)
            ]
        for inner_path, holds, inner in inside:
            if inner is Spec:  # it has messages of its own: tests/unit/activations/test_spec.py
                continue
            is_there = type(holds) is inner or any(
                word.startswith(f"{inner_path}.") for word in before
            )
            chosen = before if is_there else (*before, f"{inner_path}={inner.__name__}")
            own = holds if type(holds) is inner else None
            yield from numbers_of(root, inner, own, inner_path, chosen, known)


@functools.cache
def numbers() -> tuple[Number, ...]:
    """The numbers of all classes that a setting can reach."""
    known: set[type] = set()
    return tuple(
        number
        for root, config in roots().items()
        for number in numbers_of(root, type(config), config, "", (), known)
    )


def is_allowed(number: Number, item: float) -> bool:
    """Whether an accepted value is finite, and within the bounds that its type states."""
    if math.isnan(item) or not (math.isfinite(item) or number.field in MAY_BE_INFINITE):
        return False
    stated = [(of, bound) for name, of, bound in stated_bounds(number.kind) if name == number.field]
    return all(bound.holds(item) for of, bound in stated if of == number.is_list)


def test_every_number_is_reached_and_states_its_bound_in_its_type() -> None:
    unstated = [
        f"{number.kind.__name__}.{number.field}"
        for number in numbers()
        if number.field not in {name for name, _, _ in stated_bounds(number.kind)}
    ]
    assert not unstated
    reached = {number.kind for number in numbers()}
    for kind in set().union(*(reachable(type(config)) for config in roots().values())):
        has_numbers = any({int, float} & {*members_of(hint)} for hint in field_types(kind).values())
        assert not has_numbers or kind in reached, f"{kind.__name__} is not reached: see NEEDED"
    assert len(numbers()) > 400


def test_every_class_whose_types_state_bounds_checks_them() -> None:
    classes = set().union(*(reachable(type(config)) for config in roots().values()))
    unchecked = [
        kind.__name__
        for kind in classes
        if stated_bounds(kind)
        and not any("validate(" in inspect.getsource(base) for base in kind.__mro__[:-1])
    ]
    assert not unchecked, unchecked


@pytest.mark.parametrize("value", VALUES)
def test_a_hostile_number_is_refused_by_name_in_one_line_or_its_bound_allows_it(value: str) -> None:
    accepted, wrong = 0, []
    for number in numbers():
        try:
            changed = number.set(value)
        except ConfigError as error:
            line = error.line()
            if number.field not in line or "\n" in line or len(line) > 800:
                wrong.append(line)
            continue
        accepted += 1
        items = changed if number.is_list else (changed,)
        if not all(is_allowed(number, item) and float(item) == float(value) for item in items):
            wrong.append(f"{number} is {changed}")
    assert not wrong, "\n".join(wrong)
    assert accepted >= {"0": 100, "1e30": 60, "1e18": 200, "1e-300": 90, "inf": 1}.get(value, 0)
    assert accepted < len(numbers()) - 100
