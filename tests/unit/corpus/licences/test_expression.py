"""SPDX expressions: parsing, normal form, decisions; every identifier of the table is on the SPDX list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.base.errors import ConfigError
from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.licences.expression import (
    ExpressionError,
    join_expressions,
    licence_verdict,
    parse,
    spdx_identifier,
    write,
)
from stamm.corpus.licences.families import _MEMBERS, FAMILIES, rank

DEFAULT = LicenceConfig()


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("mit", "MIT"),
        (" MIT OR  Apache-2.0 ", "Apache-2.0 OR MIT"),
        ("MIT AND (ISC OR Zlib)", "(ISC OR Zlib) AND MIT"),
        ("MIT OR ISC AND Zlib", "ISC AND Zlib OR MIT"),
        ("((MIT))", "MIT"),
        ("GPL-2.0+ WITH Classpath-exception-2.0", "GPL-2.0-or-later WITH Classpath-exception-2.0"),
        ("GPL-3.0", "GPL-3.0-only"),
        ("Apache-2.0+", "Apache-2.0+"),
        ("LicenseRef-Own AND mit", "LicenseRef-Own AND MIT"),
        ("MIT AND MIT", "MIT"),
    ],
)
def test_one_form(written: str, plain: str) -> None:
    assert write(parse(written)) == plain
    assert write(parse(plain)) == plain


@pytest.mark.parametrize(
    "written",
    ["", "MIT AND", "AND MIT", "(MIT", "MIT)", "MIT ISC", "Nonsense-1.0", "MIT WITH Nothing",
     "MIT; rm", "(" * 10_000, "MIT AND " * 10_000, "MIT\u0000", "LicenseRef-" + "x" * 100],
)  # fmt: skip
def test_what_is_no_expression(written: str) -> None:
    with pytest.raises(ExpressionError):
        parse(written)
    assert licence_verdict(written, DEFAULT) == "unknown"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", "allowed"),
        ("CC0-1.0", "allowed"),
        ("CC-BY-4.0", "allowed"),
        ("CC-BY-SA-3.0-DE", "allowed"),
        ("CC-BY-NC-4.0", "denied"),
        ("CC-BY-ND-4.0", "denied"),
        ("CC-BY-NC-ND-3.0-IGO", "denied"),
        ("GPL-3.0-or-later", "denied"),
        ("GPL-2.0-only WITH Classpath-exception-2.0", "denied"),
        ("Apache-2.0 WITH LLVM-exception", "allowed"),
        ("MIT OR GPL-3.0-only", "allowed"),
        ("MIT AND GPL-3.0-only", "denied"),
        ("LicenseRef-Own", "unknown"),
        ("LicenseRef-Own OR MIT", "allowed"),
        ("LicenseRef-Own AND MIT", "unknown"),
        ("LicenseRef-Own AND GPL-3.0-only", "denied"),
        ("LicenseRef-Own OR GPL-3.0-only", "unknown"),
        ("(MIT OR GPL-3.0-only) AND (ISC OR CC-BY-NC-4.0)", "allowed"),
        ("LicenseRef-All-Rights-Reserved", "denied"),
    ],
)
def test_verdicts(expression: str, expected: str) -> None:
    assert licence_verdict(expression, DEFAULT) == expected


def test_options() -> None:
    assert licence_verdict("CC-BY-SA-4.0", LicenceConfig(share_alike=False)) == "denied"
    assert licence_verdict("CC-BY-NC-4.0", LicenceConfig(noncommercial=True)) == "allowed"
    # Two restrictions need two permissions.
    assert licence_verdict("CC-BY-NC-ND-4.0", LicenceConfig(noncommercial=True)) == "denied"
    both = LicenceConfig(noncommercial=True, no_derivatives=True)
    assert licence_verdict("CC-BY-NC-ND-4.0", both) == "allowed"
    assert licence_verdict("GPL-3.0-only", LicenceConfig(copyleft=True)) == "allowed"
    assert licence_verdict("MIT", LicenceConfig(deny=("mit",))) == "denied"
    assert licence_verdict("LicenseRef-Own", LicenceConfig(allow=("LicenseRef-own",))) == "allowed"
    with pytest.raises(ConfigError, match="a licence that is also in deny"):
        LicenceConfig(allow=("MIT",), deny=("mit",))
    with pytest.raises(ConfigError, match="must name SPDX identifiers"):
        LicenceConfig(allow=("MIT OR ISC",))


@pytest.mark.parametrize("listed", ["AGPL-3.0", "agpl-3.0+", "AGPL-3.0-only", "AGPL-3.0-or-later"])
@pytest.mark.parametrize("named", ["AGPL-3.0", "AGPL-3.0+", "AGPL-3.0-only", "AGPL-3.0-or-later"])
def test_deny_holds_for_every_spelling_of_a_version(listed: str, named: str) -> None:
    config = LicenceConfig(copyleft=True, deny=(listed,))
    assert licence_verdict(named, config) == "denied"
    assert licence_verdict("GPL-3.0-only", config) == "allowed"
    with pytest.raises(ConfigError, match="a licence that is also in deny"):
        LicenceConfig(allow=(named,), deny=(listed,))


def test_deny_holds_for_later_versions() -> None:
    assert licence_verdict("Apache-2.0+", LicenceConfig(deny=("Apache-2.0",))) == "denied"
    assert licence_verdict("Apache-2.0", LicenceConfig(deny=("Apache-2.0+",))) == "denied"


@pytest.mark.parametrize(
    ("listed", "named", "expected"),
    [
        ("GPL-3.0", "GPL-3.0", "allowed"),
        ("GPL-3.0", "GPL-3.0-or-later", "allowed"),
        ("gpl-3.0+", "GPL-3.0-or-later", "allowed"),
        ("GPL-3.0-or-later", "GPL-3.0+", "allowed"),
        ("GPL-3.0-only", "GPL-3.0", "allowed"),
        ("GPL-3.0-or-later", "GPL-3.0-only", "denied"),
        ("GPL-3.0-only", "GPL-3.0-or-later", "denied"),
        ("GPL-3.0", "GPL-2.0", "denied"),
    ],
)
def test_allow_with_a_suffix_is_exact(listed: str, named: str, expected: str) -> None:
    assert licence_verdict(named, LicenceConfig(allow=(listed,))) == expected


def test_every_name_of_the_table_is_on_the_spdx_list() -> None:
    for name in (name for names in _MEMBERS.values() for name in names):
        assert spdx_identifier(name).removesuffix("-only") == name
        assert rank(name) >= 0
    assert tuple(_MEMBERS) == FAMILIES


NAMES = st.sampled_from(["MIT", "GPL-3.0-only", "LicenseRef-Own", "CC-BY-NC-4.0", "ISC"])
TREES = st.recursive(
    NAMES, lambda inner: st.tuples(inner, st.sampled_from(["AND", "OR"]), inner), max_leaves=6
)
WORTH = {"denied": 0, "unknown": 1, "allowed": 2}


def as_text(tree: object) -> str:
    if isinstance(tree, tuple):
        return f"({as_text(tree[0])}) {tree[1]} ({as_text(tree[2])})"
    return str(tree)


def worth(tree: object) -> int:
    """The verdict as a number: AND is the least, OR the greatest."""
    if isinstance(tree, tuple):
        return (min if tree[1] == "AND" else max)(worth(tree[0]), worth(tree[2]))
    return WORTH[licence_verdict(str(tree), DEFAULT)]


@given(TREES)
def test_verdict_is_least_and_greatest(tree: object) -> None:
    text = as_text(tree)
    assert WORTH[licence_verdict(text, DEFAULT)] == worth(tree)
    assert WORTH[licence_verdict(write(parse(text)), DEFAULT)] == worth(tree)


def test_join() -> None:
    assert join_expressions("AND", []) == ""
    assert join_expressions("AND", ["MIT", "MIT"]) == "MIT"
    assert join_expressions("AND", ["MIT OR ISC", "Zlib"]) == "(ISC OR MIT) AND Zlib"
