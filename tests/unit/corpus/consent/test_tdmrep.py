"""tdmrep.json: reservations, and invalid files."""

from __future__ import annotations

import json
import random

import pytest

from stamm.corpus.consent.robots_matcher import (
    matches,
    normalize_path,
    normalize_pattern,
    path_of,
)
from stamm.corpus.consent.tdmrep import MOST_RULES, TdmrepFile

SITE = "https://example.org"
# The three groups of files of the report's own example.
REPORT = json.dumps(
    [
        {"location": "/directory-a/", "tdm-reservation": 1},
        {
            "location": "/directory-b/html/",
            "tdm-reservation": 1,
            "tdm-policy": "https://provider.com/policies/policy.json",
        },
        {"location": "/directory-b/images/*.jpg", "tdm-reservation": 0},
    ]
)


@pytest.mark.parametrize(
    ("path", "state", "policy"),
    [
        ("/directory-a/x.pdf", "reserved", ""),
        ("/directory-b/html/x", "reserved", "https://provider.com/policies/policy.json"),
        ("/directory-b/images/a/b.jpg?size=2", "not_reserved", ""),
        ("/directory-b/images/a/b.png", "silent", ""),
        ("/Directory-A/x.pdf", "silent", ""),
        ("", "silent", ""),
    ],
)
def test_the_example_of_the_report(path: str, state: str, policy: str) -> None:
    answer = TdmrepFile(REPORT).answer(SITE + path)
    assert (answer.state, answer.policy) == (state, policy)


def test_the_first_match_holds_and_names_itself() -> None:
    rules = [
        {"location": "/", "tdm-reservation": 0},
        {"location": "/longer/", "tdm-reservation": 1},
    ]
    answer = TdmrepFile(json.dumps(rules)).answer(f"{SITE}/longer/x")
    assert (answer.state, answer.rule) == ("not_reserved", "location /: tdm-reservation 0")
    assert TdmrepFile(json.dumps(rules[::-1])).answer(f"{SITE}/longer/x").state == "reserved"


@pytest.mark.parametrize(
    ("location", "path", "state"),
    [
        ("/this/path/exactly$", "/this/path/exactly", "reserved"),
        ("/this/path/exactly$", "/this/path/exactly/", "silent"),
        ("/this/*/then", "/this/or/that/then/more", "reserved"),
        ("/this/*/then", "/this/then", "silent"),
        ("/path/foo-%24", "/path/foo-$", "reserved"),
        ("/path/foo-$x", "/path/foo-$x", "reserved"),
        ("/%7Ejoe", "/~joe", "reserved"),
        ("/~joe", "/%7ejoe", "reserved"),
        ("/a%2fb", "/a/b", "silent"),
        ("/a%2fb", "/a%2Fb", "reserved"),
        ("/café", "/caf%c3%a9", "reserved"),
        ("*", "/anything?at=all", "reserved"),
        ("/*$", "/x", "reserved"),
        # Beyond the report: a missing slash, and a whole address.
        ("images/", "/images/x", "reserved"),
        ("https://example.org/images/", "/images/x", "reserved"),
        ("https://example.org", "/x", "reserved"),
        ("", "/x", "reserved"),
    ],
)
def test_locations(location: str, path: str, state: str) -> None:
    text = json.dumps([{"location": location, "tdm-reservation": 1}])
    assert TdmrepFile(text).answer(SITE + path).state == state


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (1, "reserved"),
        (True, "reserved"),
        ("1", "reserved"),
        (0, "not_reserved"),
        (False, "not_reserved"),
        ("0", "not_reserved"),
        # Other values are errors of protocol, which leave the reservation unset.
        (2, "silent"),
        (None, "silent"),
        ("yes", "silent"),
        ([1], "silent"),
        (1.0, "silent"),
    ],
)
def test_values(value: object, state: str) -> None:
    rules = [
        {"location": "/x", "tdm-reservation": value},
        {"location": "/other", "tdm-reservation": 1},
    ]
    assert TdmrepFile(json.dumps(rules)).answer(f"{SITE}/x").state == state


def test_a_policy_counts_only_with_a_reservation_and_is_bounded() -> None:
    rule = {"location": "/", "tdm-reservation": 1, "tdm-policy": "https://p/\x1b[31m" + "x" * 9999}
    policy = TdmrepFile(json.dumps([rule])).answer(SITE).policy
    assert policy.startswith("https://p/")
    assert "\x1b" not in policy
    assert len(policy) <= 1024
    assert TdmrepFile(json.dumps([{**rule, "tdm-reservation": 0}])).answer(SITE).policy == ""


@pytest.mark.parametrize("text", ["", " \n", "<!doctype html><p>404", "\ufeff<html>", "[]"])
def test_other_files_are_silent(text: str) -> None:
    assert TdmrepFile(text).answer(SITE).state == "silent"


def test_a_byte_order_mark_is_no_part_of_the_file() -> None:
    assert TdmrepFile("\ufeff" + REPORT).answer(f"{SITE}/directory-a/").state == "reserved"


@pytest.mark.parametrize(
    "text",
    [
        '{"location": "/", "tdm-reservation": 1}',
        '[{"location": "/", "tdm-reservation": 1}',
        REPORT[:-20],
        "not found",
        "[" * 100_000,
        "9" * 10_000,
        '[{"tdm-reservation": 1}]',
        '["/"]',
        json.dumps([{"location": "/" * 5000, "tdm-reservation": 1}]),
        json.dumps([{"location": "/", "tdm-reservation": 1}] * (MOST_RULES + 1)),
        json.dumps([{"location": "/", "tdm-reservation": 1, "note": "x" * 600_000}]),
    ],
)
def test_an_invalid_file_is_unparsable(text: str) -> None:
    answer = TdmrepFile(text).answer(SITE)
    assert answer.state == "unparsable"
    assert 0 < len(answer.rule) <= 200


def _slow_match(pattern: str, path: str) -> bool:
    """The definition, character by character."""
    if pattern in ("", "$"):
        return pattern == "" or path == ""
    if pattern[0] == "*":
        return any(_slow_match(pattern[1:], path[at:]) for at in range(len(path) + 1))
    return path[:1] == pattern[0] and _slow_match(pattern[1:], path[1:])


def test_matching_agrees_with_its_definition() -> None:
    numbers = random.Random(7)
    agreed = {True: 0, False: 0}
    for _ in range(20_000):
        pattern = "/" + "".join(numbers.choices("ab*", k=numbers.randrange(7)))
        pattern += numbers.choice(["", "$"])
        path = "/" + "".join(numbers.choices("ab", k=numbers.randrange(8)))
        found = matches(
            normalize_pattern(pattern.encode()), normalize_path(path_of(SITE + path).encode())
        )
        assert found == _slow_match(pattern, path), (pattern, path)
        agreed[found] += 1
    assert min(agreed.values()) > 2000


def test_hostile_patterns_take_linear_time() -> None:
    # A matcher that goes back at every star would not end here.
    pattern = normalize_pattern(b"/" + b"*a" * 1000 + b"b$")
    assert not matches(pattern, b"/" + b"a" * 100_000)
