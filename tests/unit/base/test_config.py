"""Configurations round-trip, overrides are typed, and errors name the path and the nearest key."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.base.config import (
    closest,
    differences,
    flatten,
    from_plain,
    nearest,
    override,
    to_plain,
    validate,
)
from stamm.base.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Round:
    radius: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Square:
    side: int = 2

    def __post_init__(self) -> None:
        validate(self, ("side", self.side > 0, "must be positive"))


@dataclass(frozen=True, kw_only=True)
class Tree:
    name: str = "oak"
    shape: Round | Square = field(default_factory=Round)
    parts: tuple[Square, ...] = (Square(), Square(side=3))
    sizes: tuple[int, ...] = (1, 2)
    mode: Literal["fast", "slow"] = "fast"
    limit: int | None = None
    extra: Square | None = None
    on: bool = True


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Fields that must agree, and one without a default."""

    owner: str
    width: int = 2
    trees: tuple[Tree, ...] = (Tree(limit=2), Tree(limit=2))

    def __post_init__(self) -> None:
        agree = all(tree.limit == self.width for tree in self.trees)
        validate(self, ("width", agree, "is not the limit of every tree"))


@dataclass(frozen=True, kw_only=True)
class Garden:
    title: str = ""
    plot: Plot | None = None
    corner: Square | Plot = field(default_factory=Square)


trees = st.builds(
    Tree,
    name=st.text(max_size=5),
    shape=st.one_of(
        st.builds(Round, radius=st.floats(allow_nan=False, allow_infinity=False)),
        st.builds(Square, side=st.integers(1, 9)),
    ),
    parts=st.lists(st.builds(Square, side=st.integers(1, 9)), max_size=3).map(tuple),
    sizes=st.lists(st.integers(), max_size=3).map(tuple),
    mode=st.sampled_from(["fast", "slow"]),
    limit=st.none() | st.integers(),
    extra=st.none() | st.just(Square(side=5)),
    on=st.booleans(),
)


@given(trees)
def test_plain_form_round_trips(tree: Tree) -> None:
    assert from_plain(Tree, to_plain(tree)) == tree


def test_a_union_member_is_tagged_with_its_class() -> None:
    assert to_plain(Tree(shape=Square(side=4)))["shape"] == {"kind": "Square", "side": 4}


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("name=elm", Tree(name="elm")),
        ("shape.radius=2", Tree(shape=Round(radius=2.0))),
        ("shape=Square", Tree(shape=Square())),
        ("sizes.1=7", Tree(sizes=(1, 7))),
        ("parts=Square", Tree(parts=(Square(),))),
        ("parts.1.side=7", Tree(parts=(Square(), Square(side=7)))),
        ("sizes=4,5", Tree(sizes=(4, 5))),
        ("sizes=[4, 5]", Tree(sizes=(4, 5))),
        ("sizes=", Tree(sizes=())),
        ("mode=slow", Tree(mode="slow")),
        ("limit=1.5M", Tree(limit=1_500_000)),
        ("limit=-3", Tree(limit=-3)),
        ("limit=none", Tree(limit=None)),
        ("extra=Square", Tree(extra=Square())),
        ("on=false", Tree(on=False)),
    ],
)
def test_overrides_are_typed_by_the_field(assignment: str, expected: Tree) -> None:
    assert override(Tree(), [assignment]) == expected


def test_overrides_apply_in_order() -> None:
    assert override(Tree(), ["shape=Square", "shape.side=9"]) == Tree(shape=Square(side=9))


TOGETHER = ["trees.0.limit=5", "trees.1.limit=5", "width=5"]


@pytest.mark.parametrize("order", list(itertools.permutations(TOGETHER)))
def test_values_that_must_agree_are_changed_together_in_any_order(order: tuple[str, ...]) -> None:
    expected = Plot(owner="me", width=5, trees=(Tree(limit=5), Tree(limit=5)))
    assert override(Plot(owner="me"), order) == expected


def test_a_refusal_names_the_assignments_it_comes_from() -> None:
    with pytest.raises(ConfigError) as caught:
        override(Plot(owner="me"), ["owner=you", "width=5", "trees.0.name=elm"])
    assert "width = 5 is not the limit of every tree (width set" in caught.value.line()
    with pytest.raises(ConfigError) as caught:
        override(Plot(owner="me"), ["owner=you", "trees.1=Tree"])
    assert "(owner, trees.1 set on the command line)" in caught.value.line()


def test_a_class_chosen_without_a_needed_value_gets_it_from_a_later_assignment() -> None:
    assert override(Garden(), ["plot=Plot", "plot.owner=me"]) == Garden(plot=Plot(owner="me"))
    chosen = override(
        Garden(), ["corner=Plot", "corner.width=3", "corner.trees=", "corner.owner=x"]
    )
    assert chosen == Garden(corner=Plot(owner="x", width=3, trees=()))
    with pytest.raises(ConfigError) as caught:
        override(Garden(), ["title=herbs", "plot=Plot"])
    assert "plot.owner has no value (plot set on the command line)" in caught.value.line()


def test_choosing_a_class_forgets_what_was_set_below_it() -> None:
    assert override(Tree(shape=Square(side=9)), ["shape=Square"]).shape == Square()


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["limit=5", "limit=6"], "limit is given twice"),
        (["limit=5", "limit=5"], "limit is given twice"),
        (["shape=Square", "shape.side=9", "shape=Square"], "shape is given twice"),
        (["shape.side=9", "shape=Square"], "shape=Square resets shape.side"),
    ],
)
def test_an_assignment_that_would_be_lost_is_refused(assignments: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        override(Tree(shape=Square()), assignments)


def test_a_field_of_what_is_not_there_says_how_to_put_it_there() -> None:
    with pytest.raises(ConfigError) as caught:
        override(Garden(), ["plot.trees.0.name=elm"])
    assert "plot.trees.0.name cannot be set: there is no plot" in caught.value.line()
    assert "Put plot=Plot before it" in caught.value.line()


def test_what_no_assignment_touches_stays_the_same_object() -> None:
    tree = Tree()
    assert override(tree, []) is tree
    assert override(tree, ["parts.0.side=4"]).parts[1] is tree.parts[1]


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("nmae=elm", ["unknown key 'nmae'", "Did you mean 'name'?", "set on the command line"]),
        ("shape.side=2", ["unknown key 'shape.side'", "radius"]),
        ("shape=Sqare", ["shape = 'Sqare' is not a known class", "Did you mean 'Square'?"]),
        ("parts.5.side=1", ["'5' is not a position in a list of 2"]),
        ("parts.².side=1", ["'²' is not a position in a list of 2"]),
        ("parts.-1.side=1", ["'-1' is not a position in a list of 2"]),
        ("name.x=1", ["below a plain value"]),
        ("limit=many", ["limit = 'many' is not a whole number or none"]),
        ("mode=medium", ["one of 'fast', 'slow'"]),
        ("on=maybe", ["on = 'maybe' is not true or false"]),
        ("parts.0.side=0", ["side = 0 must be positive", "parts.0.side set on the command line"]),
        ("name", ["'name' is not an assignment", "key=value"]),
    ],
)
def test_a_bad_override_says_what_where_and_the_fix(assignment: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        override(Tree(), [assignment])
    for word in words:
        assert word in caught.value.line()


def test_all_problems_are_told_at_once() -> None:
    @dataclass(frozen=True)
    class Two:
        a: int = -1
        b: int = -2

    with pytest.raises(ConfigError) as caught:
        validate(Two(), ("a", False, "is bad"), ("b", False, "is worse"))
    assert "Two.a = -1 is bad; Two.b = -2 is worse" in caught.value.line()


@pytest.mark.parametrize(
    ("plain", "word"),
    [
        ({"nam": "x"}, "Did you mean 'name'?"),
        ({"shape": {"kind": "Oval"}}, "'Oval' is not a known class"),
        ({"sizes": ["a"]}, "sizes.0 = 'a' is not a whole number"),
        ({"on": 1}, "on = 1 is not true or false"),
    ],
)
def test_bad_plain_values_name_their_path(plain: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_plain(Tree, plain, "config.json")
    assert word in caught.value.line()
    assert "config.json" in caught.value.line()


def test_a_missing_value_is_named() -> None:
    @dataclass(frozen=True)
    class Needs:
        thing: int

    with pytest.raises(ConfigError, match="thing has no value"):
        from_plain(Needs, {})


def test_the_nearest_name_is_first_of_all_one_with_its_letters_swapped() -> None:
    assert nearest("xeilu", ["xsilu", "xielu", "silu"]).startswith("Did you mean 'xielu'? Known: ")
    assert nearest("xsilo", ["xsilu", "xielu", "silu"]).startswith("Did you mean 'xsilu'?")
    assert nearest("zzz", ["xielu"]) == "Known: xielu"


def test_differences_are_told_by_key() -> None:
    left, right = to_plain(Tree()), to_plain(Tree(name="elm", parts=(Square(),)))
    assert differences(left, right) == [("name", "oak", "elm"), ("parts.1.side", 3, "-")]
    assert flatten(left)["sizes"] == [1, 2]


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("xeilu", "xielu"),
        ("XIELU", "xielu"),
        ("demoo", "demo"),
        ("nosuch", None),
        ("runs/x", None),
        ("", None),
    ],
)
def test_only_a_close_name_is_suggested(name: str, close: str | None) -> None:
    known = ["xielu", "demo", "smoke", "logish", "swish", "aglu"]
    assert closest(name, known) == close
    assert ("Did you mean" in nearest(name, known)) is (close is not None)


def test_a_long_list_of_known_names_is_cut() -> None:
    hint = nearest("name", [f"other{number:03}" for number in range(100)])
    assert hint.endswith("other039 and 60 more")
